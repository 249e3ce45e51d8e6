"""NumPy in blocks: its own functions, on pieces that fit into a cache, without large temporaries.

Needs nothing but NumPy, and gives its results to the last bit, sums of floats excepted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dask_marsched.kernels import proof
from dask_marsched.kernels.backend import Results, UnsupportedError
from dask_marsched.kernels.bound_expression import Setting
from dask_marsched.kernels.expression import TypedExpression, TypedNode
from dask_marsched.kernels.operations import INDEXING, RAISING, UFUNCS
from dask_marsched.kernels.scratch import Scratch

#: Bytes of the largest buffer: with a few of them the second cache is not exceeded.
_BLOCK = 1 << 17
#: Below so many elements in the innermost loop NumPy's own overhead is what takes the time.
_LEAST = 4096
_NAMES = {"divide by zero": "divide", "overflow": "over", "invalid value": "invalid"}
_JOINING = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum,
    "any": np.logical_or, "all": np.logical_and,
}  # fmt: skip

_Blocks = list[np.ndarray[Any, Any]]


class BlocksBackend:
    """NumPy's functions on blocks."""

    name = "blocks"

    def __init__(self) -> None:
        self._scratch = Scratch()

    def at_hand(self, setting: Setting, exact: bool) -> bool:
        """See `Backend.at_hand`."""
        return True

    def prepare(self, setting: Setting, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """Return a function that evaluates an expression in its setting.

        Raises
        ------
        UnsupportedError
            If blocks of it would be too small, a reduction is not known, or NumPy would warn for
            each block.
        """
        loops = setting.nest
        if loops.shape[-1] < _LEAST:
            raise UnsupportedError("short loops")
        if any(kind in INDEXING for _, kind, _ in setting.typed.outputs):
            raise UnsupportedError("searches")
        if any(n.op in RAISING and n.dtype.kind in "iu" for n in setting.typed.nodes):
            raise UnsupportedError("powers of integers")
        if any(_discards(node, setting.typed.nodes) for node in setting.typed.nodes):
            raise UnsupportedError("parts of complex numbers that are discarded")
        if any(kind == "prod" and dtype.kind in "fc" for _, kind, dtype in setting.typed.outputs):
            raise UnsupportedError("products")  # in another order they may overflow or vanish
        if exact and setting.typed.reduced and proof.claims(setting):
            raise UnsupportedError("reductions of floats as NumPy does them")
        sums = [dtype for _, kind, dtype in setting.typed.outputs if kind == "sum"]
        if np.dtype(np.float16) in sums:
            raise UnsupportedError("sums of halves")  # NumPy rounds theirs once, here each block's
        reordered = any(dtype.kind in "fc" for dtype in sums)
        program = _Program(setting.typed, _length(setting), self._scratch)
        inputs = len(setting.inputs)

        def run(values: Sequence[Any]) -> Results:
            arrays = [*setting.operands(values), *(results := setting.allocate())]
            views = [
                np.lib.stride_tricks.as_strided(array, loops.shape, strides)
                for array, strides in zip(arrays, loops.strides, strict=True)
            ]
            raised: set[str] = set()

            def note(error: str, _: int) -> None:
                raised.add(_NAMES.get(error, "invalid"))

            with np.errstate(divide="call", over="call", invalid="call", call=note):
                if not setting.typed.reduced:
                    program.map(views[:inputs], views[inputs:])
                elif loops.inner_reduced:
                    program.rows(views[:inputs], views[inputs:], loops.kept)
                else:
                    program.columns(views[:inputs], views[inputs:], loops.kept)
            # in another order of the terms there may be no overflow
            doubtful = reordered and "over" in raised
            return Results(setting.finish(results), raised, doubtful)

        return run


def _length(setting: Setting) -> int:
    largest = max(node.dtype.itemsize for node in setting.typed.nodes)
    return min(_BLOCK // largest, setting.nest.shape[-1])


def _discards(node: TypedNode, nodes: Sequence[TypedNode]) -> bool:
    """Whether a cast leaves out imaginary parts, of which NumPy warns each time."""
    return (
        node.op == "cast" and node.dtype.kind not in "bc" and nodes[node.args[0]].dtype.kind == "c"
    )


class _Program:
    """An expression, evaluated block by block."""

    def __init__(self, expression: TypedExpression, length: int, scratch: Scratch) -> None:
        self.nodes, self.outputs, self.length = expression.nodes, expression.outputs, length
        self._computed = [node.dtype for node in self.nodes if node.op != "input"]
        self._scratch = scratch

    def _buffers(self) -> _Blocks:
        return self._scratch.arrays(self.length, self._computed)

    def _blocks(
        self, views: _Blocks, index: tuple[int, ...], buffers: _Blocks
    ) -> Iterator[tuple[slice, _Blocks]]:
        """Yield the values of all nodes, block by block of an innermost loop."""
        rows = [view[index] for view in views]
        for start in range(0, rows[0].shape[0], self.length):
            where = slice(start, start + self.length)
            yield where, self._evaluate([row[where] for row in rows], buffers)

    def _evaluate(self, given: _Blocks, buffers: _Blocks) -> _Blocks:
        found: _Blocks = []
        inputs, outs = iter(given), iter(buffers)
        for node in self.nodes:
            if node.op == "input":
                found.append(next(inputs))
            else:
                out = next(outs)[: given[0].shape[0]]
                _apply(node, [found[arg] for arg in node.args], out)
                found.append(out)
        return found

    def map(self, views: _Blocks, results: _Blocks) -> None:
        buffers = self._buffers()
        for index in np.ndindex(views[0].shape[:-1]):
            for where, found in self._blocks(views, index, buffers):
                for (position, _, _), result in zip(self.outputs, results, strict=True):
                    result[index][where] = found[position]

    def rows(self, views: _Blocks, results: _Blocks, kept: int) -> None:
        shape, buffers = views[0].shape[:-1], self._buffers()
        for outer in np.ndindex(shape[:kept]):
            partial: list[list[Any]] = [[] for _ in self.outputs]
            for inner in np.ndindex(shape[kept:]):
                for _, found in self._blocks(views, (*outer, *inner), buffers):
                    for (position, kind, dtype), values in zip(self.outputs, partial, strict=True):
                        values.append(_reduce(kind, found[position], dtype))
            for (_, kind, dtype), values, result in zip(
                self.outputs, partial, results, strict=True
            ):
                first = (*outer, *itertools.repeat(0, result.ndim - kept))
                result[first] = _reduce(kind, np.array(values, dtype), dtype)

    def columns(self, views: _Blocks, results: _Blocks, kept: int) -> None:
        shape, buffers = views[0].shape[:-1], self._buffers()
        for outer in np.ndindex(shape[:kept]):
            for inner in np.ndindex(shape[kept:]):
                first = not any(inner)
                for where, found in self._blocks(views, (*outer, *inner), buffers):
                    for (position, kind, _), result in zip(self.outputs, results, strict=True):
                        target = result[(*outer, *inner)][where]
                        joining = _JOINING[kind or ""]
                        if first and kind in ("sum", "prod"):
                            target[...] = joining.identity
                        if first and kind not in ("sum", "prod"):
                            target[...] = found[position]
                        else:
                            joining(target, found[position], out=target)


def _reduce(kind: str | None, values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> Any:
    joining = _JOINING[kind or ""]
    return joining.reduce(values, dtype=dtype if kind in ("sum", "prod") else None)


def _apply(node: TypedNode, operands: _Blocks, out: np.ndarray[Any, Any]) -> None:
    if node.op == "cast":
        np.copyto(out, operands[0], casting="unsafe")
    elif node.op == "where":
        np.copyto(out, operands[2])
        np.copyto(out, operands[1], where=operands[0])
    elif node.op == "power" and node.param == 2 and node.dtype.kind == "f":
        np.square(operands[0], out=out)
    else:
        UFUNCS[node.op](*operands, out=out)
