"""Reduces step functions and intervals over virtual time to a given number of bins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def highest(times: Floats, levels: NDArray[np.int64], edges: Floats) -> NDArray[np.int64]:
    """Return the position of the highest level of a step function in each bin between ``edges``.

    It is ``levels[i]`` from ``times[i]`` on, and 0 (position -1) before; the last bin is unbounded.
    """
    begins = np.searchsorted(times, edges[:-1])
    ends = np.append(begins[1:], len(times))
    padded = np.concatenate(([0], levels))  # position i + 1 is level i
    return np.array(
        [
            begin + int(np.argmax(padded[begin : end + 1])) - 1
            for begin, end in zip(begins, ends, strict=True)
        ],
        dtype=np.int64,
    )


def level_at(levels: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the levels at the positions that `highest` returns."""
    return np.concatenate(([0], levels))[positions + 1]


def busy(starts: Floats, stops: Floats, edges: Floats) -> Floats:
    """Return for each bin the mean number of intervals that are open in it."""
    spent = _elapsed(starts, edges) - _elapsed(stops, edges)
    return np.diff(spent) / np.diff(edges)


def _elapsed(since: Floats, times: Floats) -> Floats:
    """Return for each time the sum of the time elapsed since all earlier moments."""
    since = np.sort(since)
    earlier = np.searchsorted(since, times)
    sums = np.concatenate(([0.0], np.cumsum(since)))
    elapsed: Floats = earlier * times - sums[earlier]
    return elapsed
