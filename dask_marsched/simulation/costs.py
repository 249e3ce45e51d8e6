"""What tasks cost: seconds and bytes, recorded by running them or derived from sizes."""

from __future__ import annotations

import dataclasses
import pickle
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dask.order
from dask.sizeof import sizeof
from dask.utils import key_split

from dask_marsched.host.graph import chunk_nbytes
from dask_marsched.host.simulation import expression, materialize

#: Bytes per second that a task is assumed to read and write.
_TOUCH_RATE = 1e9
#: Seconds that a task is assumed to take besides.
_LEAST_SECONDS = 0.0005
#: Tasks that touch no more of their input than they return.
_SLICES = frozenset({"getitem", "rechunk-split"})


@dataclasses.dataclass(frozen=True)
class Costs:
    """Sizes of results, and durations, by key.

    Attributes
    ----------
    nbytes : mapping
        Bytes of the result of each task.
    seconds : mapping
        Duration of each task; those missing are derived from the bytes that it touches.
    """

    nbytes: Mapping[Any, int]
    seconds: Mapping[Any, float] = dataclasses.field(default_factory=dict)

    def without_durations(self) -> Costs:
        """Return the same sizes with durations derived from them: the same on every machine."""
        return Costs(self.nbytes)

    def save(self, path: str | Path) -> None:
        """Write to a file."""
        Path(path).write_bytes(pickle.dumps((dict(self.nbytes), dict(self.seconds))))

    @staticmethod
    def load(path: str | Path) -> Costs:
        """Read what :meth:`save` wrote."""
        return Costs(*pickle.loads(Path(path).read_bytes()))

    def renamed(self, dsk: Mapping[Any, Any]) -> Costs:
        """Return costs for the keys of a graph that is the recorded one but for tokens.

        Dask gives some tasks new tokens whenever an expression is built (the final ones of every
        computation, unseeded random arrays). Keys that differ from recorded ones only in tokens
        take their costs, in the order in which both appear.
        """
        unknown = [key for key in dsk if key not in self.nbytes]
        if not unknown:
            return self
        recorded: dict[Any, list[Any]] = {}
        for key in self.nbytes:
            if key not in dsk:
                recorded.setdefault(_without_token(key), []).append(key)
        nbytes, seconds = dict(self.nbytes), dict(self.seconds)
        for key in unknown:
            twins = recorded.get(_without_token(key))
            if twins:
                twin = twins.pop(0)
                nbytes[key] = nbytes[twin]
                if twin in seconds:
                    seconds[key] = seconds[twin]
        return Costs(nbytes, seconds)

    def covers(self, dsk: Mapping[Any, Any]) -> bool:
        """Return True if these are the costs of a graph, tokens aside."""
        known = self.renamed(dsk).nbytes
        return len(self.nbytes) == len(dsk) and all(key in known for key in dsk)


_TOKEN = re.compile(r"[0-9a-f]{32}")


def _without_token(key: Any) -> Any:
    if isinstance(key, tuple):
        return (_without_token(key[0]), *key[1:])
    return _TOKEN.sub("", key) if isinstance(key, str) else key


class CostModel:
    """Look up, or derive, what each task of one graph costs.

    Parameters
    ----------
    dsk
        The tasks of the graph.
    costs
        What is known.

    Raises
    ------
    ValueError
        If the size of a task is unknown.
    """

    def __init__(self, dsk: Mapping[Any, Any], costs: Costs) -> None:
        costs = costs.renamed(dsk)
        missing = [key for key in dsk if key not in costs.nbytes]
        if missing:
            raise ValueError(
                f"the sizes of {len(missing)} of {len(dsk)} tasks are unknown, for instance of "
                f"{missing[0]!r}; record them with record_costs(collection)"
            )
        self._costs = {
            key: (
                costs.seconds[key] if key in costs.seconds else _derived(task, costs.nbytes, key),
                int(costs.nbytes[key]),
            )
            for key, task in dsk.items()
        }

    def __call__(self, key: Any) -> tuple[float, int]:
        """Return the seconds and bytes of a task."""
        return self._costs[key]


def _derived(task: Any, nbytes: Mapping[Any, int], key: Any) -> float:
    if key_split(key) in _SLICES:
        touched = 2 * nbytes[key]
    else:
        touched = nbytes[key] + sum(nbytes.get(dependency, 0) for dependency in task.dependencies)
    return _LEAST_SECONDS + touched / _TOUCH_RATE


def derive_costs(collection: Any, guess: bool = True) -> Costs:
    """Derive the sizes of all results from the graph alone, without executing anything.

    Parameters
    ----------
    collection
        A Dask collection or a list of them.
    guess
        Where the graph does not tell, assume the size of the largest input, and for tasks without
        inputs the mean of the sizes known. Else those tasks are left out.

    Returns
    -------
    Costs
        Bytes by task; durations follow from them.
    """
    items = list(collection) if isinstance(collection, (list, tuple)) else [collection]
    expr, keys = expression(items)
    dsk, _ = materialize(expr, keys)
    known = chunk_nbytes(expr, dsk)
    nbytes = {**known.estimated, **known.exact}
    if not guess:
        return Costs(nbytes)
    mean = sum(nbytes.values()) // max(1, len(nbytes))
    order = dask.order.order(dsk=dict(dsk)) if dsk else {}
    for key in sorted(dsk, key=order.__getitem__):
        if key not in nbytes:
            nbytes[key] = max((nbytes[other] for other in dsk[key].dependencies), default=mean)
    return Costs(nbytes)


def record_costs(collection: Any, cache: str | Path | None = None) -> Costs:
    """Execute a collection's graph once in this thread and record sizes and durations.

    Parameters
    ----------
    collection
        A Dask collection or a list of them, the same object that will be simulated.
    cache
        A file: read if it is there and covers the graph, else written.

    Returns
    -------
    Costs
        Bytes and seconds of every task.
    """
    items = list(collection) if isinstance(collection, (list, tuple)) else [collection]
    dsk, _ = materialize(*expression(items))
    if cache is not None and Path(cache).exists():
        cached = Costs.load(cache)
        if cached.covers(dsk):
            return cached
    costs = _execute(dsk)
    if cache is not None:
        Path(cache).parent.mkdir(parents=True, exist_ok=True)
        costs.save(cache)
    return costs


def _execute(dsk: Mapping[Any, Any]) -> Costs:
    order = dask.order.order(dsk=dict(dsk))
    uses: dict[Any, int] = {}
    for task in dsk.values():
        for dependency in task.dependencies:
            uses[dependency] = uses.get(dependency, 0) + 1
    values: dict[Any, Any] = {}
    nbytes: dict[Any, int] = {}
    seconds: dict[Any, float] = {}
    for key in sorted(dsk, key=order.__getitem__):
        task = dsk[key]
        inputs = {dependency: values[dependency] for dependency in task.dependencies}
        started = time.perf_counter()
        value = task(inputs)
        seconds[key] = time.perf_counter() - started
        nbytes[key] = sizeof(value)
        if uses.get(key):
            values[key] = value
        del inputs, value
        for dependency in task.dependencies:
            uses[dependency] -= 1
            if not uses[dependency]:
                del values[dependency]
    return Costs(nbytes, seconds)
