"""Computations of a few seconds for the chaos runs, of each kind of Dask's work.

With a client a computation runs on its cluster and returns a plain value; without one it returns
the expected value, computed by threads of this process or by plain Python.
"""

from __future__ import annotations

import itertools
import operator
import os
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, fire_and_forget

from benchmarks import memory_tight
from benchmarks.chaos.resource_watch import asked

#: Timeout of a computation, seconds; a longer one counts as hung.
PATIENCE = 600.0
#: Bytes of a chunk of the arrays here, and its side.
_SIDE = 500


def _result(client: Client | None, lazy: Any) -> Any:
    if client is None:
        return lazy.compute(scheduler="threads")
    future: Any = client.compute(lazy)
    return future.result(timeout=PATIENCE)


def _field(seed: int, chunks: int) -> Any:
    side = chunks * _SIDE
    return da.random.default_rng(seed).random((side, side), chunks=_SIDE)


@cache
def _tight_expected(name: str, size: float) -> float:
    with dask.config.set(scheduler="threads"):
        return float(memory_tight.WORKLOADS[name](size).compute())


def _tight(name: str, size: float, client: Client | None, seed: int) -> float:
    """Compute one of the workloads that do not fit into memory; there is one variant of each."""
    if client is None:
        return _tight_expected(name, size)
    return float(_result(client, memory_tight.WORKLOADS[name](size)))


def _vorticity(client: Client | None, seed: int) -> float:
    u, v = _field(seed, 6), _field(seed + 100, 6)
    return float(_result(client, ((u[1:, 1:] - u[:-1, 1:]) - (v[1:, 1:] - v[1:, :-1])).std()))


def _persisted(client: Client | None, seed: int) -> list[float]:
    """Keep an array, and read it three times."""
    x = da.sqrt(_field(seed, 8) + 1)
    if client is not None:
        x = client.persist(x)
    found = [float(_result(client, part)) for part in (x.mean(), x.sum(0).max(), (x * x).min())]
    return found


def _pause(value: int, seconds: float) -> int:
    time.sleep(seconds)
    return value * value


def _delayed(client: Client | None, seed: int) -> int:
    """Join many short tasks by a tree."""
    level: list[Any] = [dask.delayed(_pause)(i, 0.004) for i in range(seed, seed + 200)]
    while len(level) > 1:
        level = [dask.delayed(sum)(level[i : i + 4]) for i in range(0, len(level), 4)]
    return int(_result(client, level[0]))


def _text(number: int) -> bytes:
    time.sleep(0.003)
    return bytes([number % 251]) * (1 << number % 20)


def _futures(client: Client | None, seed: int) -> int:
    """Map twice, over values of all sizes that are no arrays."""
    numbers = range(seed, seed + 150)
    if client is None:
        return sum(len(_text(n)) + _text(n + 1)[0] for n in numbers)
    texts = client.map(_text, numbers, pure=False)
    nexts = client.map(_text, [n + 1 for n in numbers], pure=False)
    joined = client.map(_join, texts, nexts, pure=False)
    del texts, nexts
    total: Any = client.submit(sum, joined, pure=False)
    return int(total.result(timeout=PATIENCE))


def _forgotten(client: Client | None, seed: int) -> list[int]:
    """Leave tasks to the scheduler that nobody waits for; each leaves a mark."""
    numbers = range(seed, seed + 30)
    if client is None:
        return list(numbers)
    directory, token = asked(client, os.getcwd), f"{time.time_ns()}"
    futures = client.map(partial(_mark, directory, token), numbers, pure=False)
    fire_and_forget(futures)
    del futures
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = [int(p.stem.partition("-")[2]) for p in Path(directory).glob(f"{token}-*.lock")]
        if len(found) == len(numbers):
            return sorted(found)
        time.sleep(0.1)
    raise TimeoutError


def _mark(directory: str, token: str, number: int) -> None:
    _pause(number, 0.05)
    (Path(directory) / f"{token}-{number}.lock").touch()


def _reused(client: Client | None, seed: int) -> list[int]:
    """Use a key again and again, each time for another task."""
    factors = range(seed + 1, seed + 7)
    if client is None:
        return [sum(_scaled(n, factor) for n in range(20)) for factor in factors]
    token, found = time.time_ns(), []
    for factor in factors:
        keys = [f"reused-{token}-{n}" for n in range(20)]
        scaled = client.map(partial(_scaled, factor=factor), range(20), key=keys)
        total: Any = client.submit(sum, scaled, pure=False)
        found.append(int(total.result(timeout=PATIENCE)))
        # While a task is there that read them, Dask keeps what the keys meant, in stock Dask, too.
        keys.append(total.key)
        del scaled, total
        while not client.futures.keys().isdisjoint(keys):
            time.sleep(0.01)
    return found


def _scaled(number: int, factor: int) -> int:
    return _pause(number, 0.02) * factor


def _join(a: bytes, b: bytes) -> int:
    return len(a) + b[0]


def _flaky(client: Client | None, seed: int) -> int:
    """Tasks that fail once, by an error of the infrastructure."""
    numbers = range(seed, seed + 60)
    if client is None:
        return sum(n * n for n in numbers)
    marks = asked(client, os.getcwd)
    token = f"{time.time_ns()}"
    with dask.annotate(pure=True):  # else they are not tried again
        futures = client.map(partial(_once, marks, token), numbers, pure=False)
    total: Any = client.submit(sum, futures, pure=False)
    return int(total.result(timeout=PATIENCE))


def _once(directory: str, token: str, number: int) -> int:
    if number % 10 == 0:
        mark = Path(directory) / f"{token}-{number}.lock"
        if not mark.exists():
            mark.touch()
            raise ConnectionResetError("on purpose")
    return _pause(number, 0.01)


def _frames(client: Client | None, seed: int) -> float:
    import dask.dataframe as dd
    import pandas as pd

    rng = np.random.default_rng(seed)
    n = 20_000
    table = pd.DataFrame({"key": rng.integers(0, 50, n), "value": rng.integers(0, 1000, n)})
    names = pd.DataFrame({"key": np.arange(50), "weight": np.arange(50) * 3})
    if client is None:
        joined = table.merge(names, on="key")
        return float((joined.value * joined.weight).groupby(joined.key).sum().sum())
    left = dd.from_pandas(table, npartitions=6)
    both = left.merge(dd.from_pandas(names, npartitions=2), on="key")
    products = (both.value * both.weight).groupby(both.key).sum().sum()
    return float(_result(client, products))


def _cancelled(client: Client | None, seed: int) -> float:
    """Cancel in the middle, and submit the same again."""
    lazy = (_field(seed, 8) ** 3).sum()
    if client is not None:
        future: Any = client.compute(lazy)
        with dask.annotate(pure=True):  # else they run to their end
            loops: list[Any] = client.map(_loop, range(4), pure=False)
        time.sleep(0.5)  # into the middle of it: what runs is interrupted
        client.cancel([future, *loops])
    return float(_result(client, lazy))


def _loop(number: int) -> int:
    end = time.monotonic() + 60
    for i in itertools.count():
        if time.monotonic() > end:
            return operator.index(i)
    raise AssertionError


Work = Callable[[Client | None, int], Any]

WORK: dict[str, Work] = {
    **{
        f"{name} x {size:g}": partial(_tight, name, size)
        for name in memory_tight.WORKLOADS
        for size in (0.06, 0.13)
    },
    "vorticity": _vorticity,
    "persisted": _persisted,
    "delayed": _delayed,
    "futures": _futures,
    "flaky": _flaky,
    "forgotten": _forgotten,
    "reused": _reused,
    "frames": _frames,
    "cancelled": _cancelled,
}
#: Each piece of work in so many variants.
VARIANTS = 2


@cache
def expected(name: str, variant: int) -> Any:
    """Return what is right. The first time not where there is a client: Dask knows one only."""
    return WORK[name](None, variant)
