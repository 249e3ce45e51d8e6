"""Subtracts the counts at the beginning of a report from those at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Any

#: Counts of faults that a report shows, and their labels.
FAULTS = {
    "losses": "workers lost",
    "recovered": "of these recovered",
    "results_lost": "results lost",
    "results_adopted": "results adopted by other workers",
    "computed_again": "operands computed again",
    "retried": "operands tried again",
    "fatal": "operands failed",
    "cancelled": "operands cancelled",
    "interrupted": "operands interrupted",
}
_COUNTS = {
    "transfers": ("moved", "by_handle", "by_comm"),
    "kernels": ("runs", "fused", "compiled"),
    "faults": tuple(FAULTS),
}


def meanwhile(observed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was observed, with counts of what happened within the report only.

    The ``matrix`` of transfers becomes ``pairs``, see `matrix`.
    """
    before = {part: observed["before"].get(part, {}) for part in _COUNTS}
    found: dict[str, dict[str, Any]] = {
        part: {
            **observed[part],
            **{name: less(observed[part][name], before[part].get(name)) for name in names},
        }
        for part, names in _COUNTS.items()
    }
    kernels, transfers = found["kernels"], found["transfers"]
    kernels["saved"] -= before["kernels"].get("saved", 0.0)  # negative if NumPy was faster
    earlier = before["kernels"].get("expressions", ())
    kernels["expressions"] = expressions(kernels["expressions"], earlier)
    transfers["pairs"] = matrix(transfers["matrix"], before["transfers"].get("matrix"))
    return {**observed, **found}


def less(after: Any, before: Any) -> Any:
    """Return the increase of a count; an unknown earlier count is 0."""
    return after if after is None or before is None else max(0, after - before)


def matrix(
    after: Mapping[str, Any], before: Mapping[str, Any] | None
) -> list[tuple[str, str, float]]:
    """Return (sender, receiver, bytes) of the transfers meanwhile, the largest first.

    If the rows have become hosts instead of workers, nothing is subtracted.
    """
    earlier = _entries(before) if before and before["between"] == after["between"] else {}
    found = [(*pair, value - earlier.get(pair, 0)) for pair, value in _entries(after).items()]
    return sorted((one for one in found if one[2] > 0), key=lambda one: -one[2])


def _entries(table: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    pairs = product(table["names"], repeat=2)
    return dict(zip(pairs, chain.from_iterable(table["bytes"]), strict=True))


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
            saved = one["saved"] - was.get("saved", 0.0)
            compiled = less(one["compiled"], was.get("compiled"))
            found.append({**one, "runs": runs, "saved": saved, "compiled": compiled})
    return sorted(found, key=lambda one: -one["saved"])
