"""One set of named workloads, for tests, benchmarks and examples.

This package imports nothing but dask, and only relatively from itself. So it can also be put on
the path by itself, in an environment which has neither distributed nor the rest of the package.
"""

from . import (
    arrays,
    elementwise,
    held_out,
    interactive,
    patterns,
    products,
)
from .registry import (
    Kind,
    Parameters,
    Workload,
    get,
    names,
    register,
    select,
)

__all__ = [
    "Kind",
    "Parameters",
    "Workload",
    "arrays",
    "elementwise",
    "get",
    "held_out",
    "interactive",
    "names",
    "patterns",
    "products",
    "register",
    "select",
]
