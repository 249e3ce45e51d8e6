"""The same workloads through Frisky, another scheduler for Dask."""
