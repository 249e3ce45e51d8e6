"""Reads Dask's fused tasks as expressions and runs them by kernels."""
