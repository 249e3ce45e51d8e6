"""Subtracts the counts at the beginning of a report from those at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def less(after: Any, before: Any) -> Any:
    """Return the increase of a count; an unknown earlier count is 0."""
    return after if after is None or before is None else max(0, after - before)


def numbers(
    after: Mapping[str, Any], before: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """Return the increases of the named counts."""
    return {name: less(after.get(name), before.get(name)) for name in names}


def matrix(
    after: Mapping[str, Any], before: Mapping[str, Any] | None
) -> list[tuple[str, str, float]]:
    """Return (sender, receiver, bytes) of the transfers meanwhile, the largest first.

    If the rows have become hosts instead of workers, nothing is subtracted.
    """
    earlier: dict[tuple[str, str], float] = {}
    if before is not None and before["between"] == after["between"]:
        earlier = {(a, b): value for a, b, value in _entries(before)}
    found = [(a, b, value - earlier.get((a, b), 0)) for a, b, value in _entries(after)]
    return sorted((one for one in found if one[2] > 0), key=lambda one: -one[2])


def _entries(table: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    names = table["names"]
    return [
        (sender, receiver, value)
        for sender, row in zip(names, table["bytes"], strict=True)
        for receiver, value in zip(names, row, strict=True)
    ]


def expressions(
    after: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the fused expressions evaluated meanwhile, those that saved most first."""

    def which(one: Mapping[str, Any]) -> tuple[Any, ...]:
        return one["text"], one["dtypes"], one["backend"]

    earlier = {which(one): one for one in before}
    found = []
    for one in after:
        was = earlier.get(which(one), {})
        runs = less(one["runs"], was.get("runs"))
        if runs:
            saved = one["saved"] - was.get("saved", 0.0)  # negative if NumPy was faster
            compiled = less(one["compiled"], was.get("compiled"))
            found.append({**one, "runs": runs, "saved": saved, "compiled": compiled})
    return sorted(found, key=lambda one: -one["saved"])
