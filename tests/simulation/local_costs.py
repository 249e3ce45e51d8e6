"""Costs for tests: measured by executing a graph in this thread, or derived from the graph."""

import time
from typing import Any

import dask.order
from dask.sizeof import sizeof

from dask_marsched.host.graph.result_sizes import chunk_nbytes
from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.derived import fill_missing_sizes


def record_costs(collection: Any) -> Costs:
    """Execute a graph once and record its costs."""
    dsk, _ = materialize(*expression([collection]))
    order = dask.order.order(dsk=dict(dsk))
    values: dict[Any, Any] = {}
    seconds: dict[Any, float] = {}
    for key in sorted(dsk, key=order.__getitem__):
        started = time.perf_counter()
        values[key] = dsk[key]({name: values[name] for name in dsk[key].dependencies})
        seconds[key] = time.perf_counter() - started
    nbytes = {key: sizeof(values[key]) for key in dsk}
    read = {key: sum(nbytes[name] for name in task.dependencies) for key, task in dsk.items()}
    return Costs(nbytes, seconds, read)


def derive_costs(collection: Any) -> Costs:
    """Derive the sizes of all results from the graph; guess those that it does not tell."""
    expr, keys = expression([collection])
    dsk, _ = materialize(expr, keys)
    known = chunk_nbytes(expr, dsk)
    nbytes = {**known.estimated, **known.exact}
    fill_missing_sizes(dsk, nbytes, lambda key: None)
    return Costs(nbytes)
