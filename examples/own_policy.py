"""A policy of one's own: which worker runs which initial operand, and what that moves.

An assignment policy is any object with a ``name`` and a method ``assign``. It is passed as an
instance and travels to the scheduler by value, so its class may live in a script or a notebook.

    python examples/own_policy.py [--size 4000]
"""

import argparse
from collections import defaultdict

import dask.array as da
from dask.utils import format_bytes
from distributed import LocalCluster

from dask_marsched import Client, MarsSchedulerPlugin
from dask_marsched.core.plan import Unit


class Slabs:
    """Cut the arrays into slabs of neighbouring blocks, one for each worker.

    A block is known by the numbers in its key: block (2, 1) of one array goes where block (2, 1)
    of every other array goes.
    """

    name = "slabs"

    def assign(self, graph, workers, pending=None):
        """Group the initial operands: see `dask_marsched.policies.assignment`."""
        blocks = defaultdict(list)
        for operand in graph:
            if not graph.inputs[operand] and (pending is None or operand in pending):
                key = graph.keys[operand]
                blocks[key[1:] if isinstance(key, tuple) else ()].append(operand)
        if not workers:  # none has joined yet: we are asked again when one does
            return []
        slabs = defaultdict(list)
        for rank, block in enumerate(sorted(blocks)):
            slabs[rank * len(workers) // len(blocks)] += blocks[block]
        return [Unit(tuple(sorted(slab)), worker) for worker, slab in slabs.items()]


def bytes_sent(dask_worker):
    """Return how many bytes a worker has sent to others. Runs on the workers."""
    return dask_worker.transfer_outgoing_bytes_total


def mean_product(size):
    """Return a dask array to compute: what it holds depends on `size` alone."""
    chunks = (size // 10, size // 5)
    u = da.random.default_rng(1).random((size, size), chunks=chunks)
    v = da.random.default_rng(2).random((size, size), chunks=chunks)
    return (u * v).mean(axis=0)


def run(plugin, size):
    """Return the result, and the bytes moved between the workers of a fresh cluster."""
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, scheduler_plugin=plugin) as client,
    ):
        result = mean_product(size).compute()
        return result, sum(client.run(bytes_sent).values())


def main():
    """Run the same program with stock Dask, with the default policy and with ours."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=4000, help="rows and columns of the arrays")
    size = parser.parse_args().size

    plugins = {
        "stock Dask": None,
        "default policy": MarsSchedulerPlugin(),
        "own policy": MarsSchedulerPlugin(assignment=Slabs()),
    }
    expected = None
    for name, plugin in plugins.items():
        result, moved = run(plugin, size)
        expected = result if expected is None else expected
        assert (result == expected).all()
        print(f"{name:16} moved {format_bytes(moved)} between the workers")


if __name__ == "__main__":
    main()
