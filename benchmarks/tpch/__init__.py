"""The 22 queries of TPC-H on Dask's data frames, as github.com/coiled/benchmarks writes them."""
