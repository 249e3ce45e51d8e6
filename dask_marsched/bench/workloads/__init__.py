"""Registers named workloads, for the benchmark command and for tests."""

from dask_marsched.bench.workloads import arrays
from dask_marsched.bench.workloads.registry import (
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
    "arrays",
    "get",
    "names",
    "register",
    "select",
]
