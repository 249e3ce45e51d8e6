"""Arranges the axes of some arrays into nested loops: outer, inner, and joined ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Nest(NamedTuple):
    """Loops, the outermost first. Strides are in bytes."""

    kept: int  #: number of outer loops over axes that are not reduced; they come first
    shape: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]  #: by operand, one for each loop
    inner_reduced: bool  #: whether the innermost loop runs over a reduced axis


def nest(
    shape: Sequence[int],
    strides: Sequence[Sequence[int]],
    order: Sequence[int],
    reduced: frozenset[int],
) -> Nest:
    """Return the loops over operands of a common shape without zeros.

    ``order`` lists the axes from the outermost to the innermost in memory. Strides are 0 along
    broadcast axes.
    """
    axes = [axis for axis in order if shape[axis] > 1]
    groups = _joined([_Loop(shape[a], [s[a] for s in strides], a in reduced) for a in axes])
    inner = groups.pop() if groups else _Loop(1, [0] * len(strides), bool(reduced))
    kept = [loop for loop in groups if not loop.reduced]
    others = [loop for loop in groups if loop.reduced]
    if inner.reduced:
        nested = _joined(kept) + _joined([*others, inner])
    else:
        nested = [*_joined(kept), *_joined(others), inner]
    return Nest(
        sum(not loop.reduced for loop in nested[:-1]),
        tuple(loop.length for loop in nested),
        tuple(zip(*(loop.strides for loop in nested), strict=True)),
        inner.reduced,
    )


class _Loop(NamedTuple):
    length: int
    strides: list[int]
    reduced: bool


def _joined(loops: Sequence[_Loop]) -> list[_Loop]:
    """Join neighbouring loops that are one loop in every operand."""
    found: list[_Loop] = []
    for loop in loops:
        if found:
            outer = found[-1]
            same = all(
                a == b * loop.length for a, b in zip(outer.strides, loop.strides, strict=True)
            )
            if outer.reduced == loop.reduced and same:
                found[-1] = _Loop(outer.length * loop.length, loop.strides, loop.reduced)
                continue
        found.append(loop)
    return found
