"""Describes compiled kernels, which are kept in pickled form, without LLVM's library."""

from __future__ import annotations

import hashlib
import pickle
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.bound_expression import KernelLayout
from dask_marsched.kernels.expression import TypedExpression
from dask_marsched.kernels.proof import FunctionClaim

#: An expression, its operands' layout, whether results are NumPy's to the last bit, and the
#: functions that replace NumPy's.
Key = tuple[TypedExpression, KernelLayout, bool, tuple[FunctionClaim, ...]]
#: Bit in a kernel's return value, above the flags: NumPy has to decide about a result.
DOUBT = 1 << 32


class Made(NamedTuple):
    """A compiled kernel."""

    #: NumPy's inner loops whose addresses it takes: ufunc, dtypes of operands and result.
    externals: tuple[tuple[str, tuple[np.dtype[Any], ...]], ...]
    scratch: int  #: bytes of its working space
    doubtful: bool  #: whether its results may differ from NumPy's if it raises ``invalid``
    code: bytes  #: an object file


def description(key: Key, kind: str) -> str:
    """Return text that names a kernel's files; ``kind`` names processor and versions."""
    expression, *rest = key
    made_from = (expression.nodes, expression.outputs, expression.converted, *rest)
    return f"{kind}\n{made_from!r}"


@cache
def sources() -> str:
    """Return a digest of the code that writes kernels, as changed code writes other kernels."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def decoded(content: bytes) -> Made:
    """Return the kernel in a file's content; raise the UnsupportedError that is there instead."""
    found: Made | UnsupportedError = pickle.loads(content)
    if isinstance(found, UnsupportedError):
        raise found
    return found
