"""Names, encodes and decodes the files of compiled kernels, without LLVM's library."""

from __future__ import annotations

import hashlib
import json
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
    #: Flags, named as in `numpy.errstate`, that make its results differ from NumPy's.
    doubtful: frozenset[str]
    code: bytes  #: an object file


def digest(key: Key, kind: str) -> str:
    """Return the name of a kernel's files; ``kind`` names processor and versions."""
    expression, *rest = key
    made_from = (expression.nodes, expression.outputs, expression.converted, *rest)
    text = f"{kind}\n{made_from!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@cache
def sources() -> str:
    """Return a digest of the code that writes kernels, as changed code writes other kernels."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def encoded(made: Made) -> bytes:
    """Return a file's content for a kernel."""
    head = {
        "externals": [[name, [d.str for d in dtypes]] for name, dtypes in made.externals],
        "scratch": made.scratch,
        "doubtful": sorted(made.doubtful),
    }
    return json.dumps(head).encode() + b"\n" + made.code


def refusal(reason: str) -> bytes:
    """Return a file's content for a kernel that cannot be compiled."""
    return json.dumps({"unsupported": reason}).encode() + b"\n"


def decoded(content: bytes) -> Made:
    """Return the kernel in a file's content; raise UnsupportedError if it cannot be compiled."""
    line, _, code = content.partition(b"\n")
    head = json.loads(line)
    if "unsupported" in head:
        raise UnsupportedError(head["unsupported"])
    externals = tuple(
        (name, tuple(np.dtype(dtype) for dtype in dtypes)) for name, dtypes in head["externals"]
    )
    return Made(externals, head["scratch"], frozenset(head["doubtful"]), code)
