"""What is kept on disk of a compiled kernel, and under which name; LLVM's library is not needed."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.bound_expression import Layout
from dask_marsched.kernels.expression import TypedExpression

#: An expression, how its operands lie in memory, and whether results are NumPy's to the last bit.
Key = tuple[TypedExpression, Layout, bool]
#: Beside the flags in what a kernel returns: NumPy has to decide about a result.
DOUBT = 1 << 32


class Made(NamedTuple):
    """A compiled kernel.

    Attributes
    ----------
    externals
        Names of NumPy's functions whose loops it calls, with dtypes of operands and result.
    scratch, doubtful
        As in `dask_marsched.kernels.llvm.kernel.Kernel`.
    code
        An object file.
    """

    externals: tuple[tuple[str, tuple[np.dtype[Any], ...]], ...]
    scratch: int
    doubtful: frozenset[str]
    code: bytes


def digest(key: Key, kind: str) -> str:
    """Return a kernel's name.

    Parameters
    ----------
    key
        What it is made from.
    kind
        What all kernels depend on: the processor, versions.
    """
    expression, layout, exact = key
    made_from = (expression.nodes, expression.outputs, expression.converted, layout, exact)
    text = f"{kind}\n{made_from!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@cache
def sources() -> str:
    """Return a digest of the code that writes kernels: one that has been changed writes others."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def encoded(made: Made) -> bytes:
    """Return a kernel as bytes."""
    head = {
        "externals": [[name, [d.str for d in dtypes]] for name, dtypes in made.externals],
        "scratch": made.scratch,
        "doubtful": sorted(made.doubtful),
    }
    return json.dumps(head).encode() + b"\n" + made.code


def refusal(reason: str) -> bytes:
    """Return as bytes that there is no such kernel."""
    return json.dumps({"unsupported": reason}).encode() + b"\n"


def decoded(content: bytes) -> Made:
    """Return the kernel that such bytes stand for.

    Raises
    ------
    UnsupportedError
        If there is no such kernel.
    """
    line, _, code = content.partition(b"\n")
    head = json.loads(line)
    if "unsupported" in head:
        raise UnsupportedError(head["unsupported"])
    externals = tuple(
        (name, tuple(np.dtype(dtype) for dtype in dtypes)) for name, dtypes in head["externals"]
    )
    return Made(externals, head["scratch"], frozenset(head["doubtful"]), code)
