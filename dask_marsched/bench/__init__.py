"""Runs named workloads on real clusters, stock Dask beside this package's policies."""
