"""Named workloads run on real clusters, stock Dask beside this package's policies."""
