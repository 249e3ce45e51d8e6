"""Runs the test suites of Dask and of what is built on it, with and without the plugin."""
