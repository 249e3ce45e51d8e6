"""The first steps: a client with the plugin, an array, and what the plugin did with it.

python examples/quickstart.py
"""

import dask.array as da

from dask_marsched import Client, status


def main():
    """Compute a mean over two arrays on two local worker processes."""
    with Client(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", scheduler_plugin=True
    ) as client:
        rng = da.random.default_rng(seed=1)
        a = rng.random((8_000, 8_000), chunks=(1_000, 1_000))
        b = rng.random((8_000, 8_000), chunks=(1_000, 1_000))
        print(f"mean: {(a + b).mean().compute():.4f}")
        print(status(client))


# Worker processes import this file: without this line each would start a cluster of its own.
if __name__ == "__main__":
    main()
