"""Registers the workloads that only the project's own benchmarks and tests run.

They join those of `dask_marsched.bench.workloads`, whose names this package offers too.
"""

from benchmarks.workloads import arithmetic, communication, held_out, interactive, patterns
from dask_marsched.bench.workloads import (
    MIB,
    Kind,
    Parameters,
    Workload,
    get,
    names,
    register,
    select,
)

__all__ = [
    "MIB",
    "Kind",
    "Parameters",
    "Workload",
    "arithmetic",
    "communication",
    "get",
    "held_out",
    "interactive",
    "names",
    "patterns",
    "register",
    "select",
]
