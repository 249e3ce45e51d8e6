"""A report to keep: one file of what a computation did, that needs nothing to be read."""
