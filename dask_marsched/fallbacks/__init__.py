"""Exceptions in our hooks: counted, logged once, and the decision falls back to Dask's own."""
