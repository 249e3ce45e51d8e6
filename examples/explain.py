"""What will it take? One page about a computation before it runs.

python examples/explain.py
dask marsched explain --workers 16 examples/explain.py      # of what the script computes
"""

import dask.array as da

from dask_marsched import explain


def anomaly():
    """Return the variance over time of a field, as a mean of squared differences."""
    field = da.random.default_rng(seed=1).random((40_000, 1_000), chunks=(1_000, 1_000))
    return ((field - field.mean(axis=0)) ** 2).mean(axis=0)


def main():
    """Explain the computation for a small cluster, then do it."""
    result = anomaly()
    print(explain(result, workers=4, threads=2, memory_limit="1GiB"))
    print(f"mean of the variances: {result.mean().compute():.4f}")


# The explanation simulates in a process of its own, which must not start another.
if __name__ == "__main__":
    main()
