"""Benchmarks, chaos and soak tests of dask_marsched; not part of the installed package."""
