"""Reads and rewrites Dask's graphs: sizes, order, compression, side effects of tasks."""
