"""Reads and rewrites Dask's graphs: sizes of results, order, compression, side effects."""
