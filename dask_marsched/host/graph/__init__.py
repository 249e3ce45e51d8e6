"""Reads and rewrites Dask's graphs: sizes of results, order, fusion, side effects."""
