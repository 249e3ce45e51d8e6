"""Holds the known costs of tasks: seconds, and bytes of results."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import dask.order
from dask.sizeof import sizeof

from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.simulation.costs import costs_file
from dask_marsched.simulation.costs.held_results import Places, find_held_results

_TOKEN = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class Costs:
    """Sizes of results, and durations, by key."""

    nbytes: Mapping[Any, int]  #: Bytes of the result of each task.
    #: Duration of each task on a core of its own.
    seconds: Mapping[Any, float] = dataclasses.field(default_factory=dict)
    #: Bytes of all inputs of each task, from which costs of other tasks are learnt.
    input_nbytes: Mapping[Any, int] = dataclasses.field(default_factory=dict)
    #: Workers that hold each result before the graph runs. Such results cost no time.
    held: Mapping[Any, Places] = dataclasses.field(default_factory=dict)
    overhead: float = 1.0  #: Default of ``overhead`` in `simulate`, see :class:`ClusterSpec`.

    def without_durations(self) -> Costs:
        """Return the same sizes without durations, which are then the same on every machine."""
        return dataclasses.replace(self, seconds={}, overhead=1.0)

    def holding(self, collections: Iterable[Any]) -> Costs:
        """Return these costs, completed by the results that futures in collections refer to."""
        found = find_held_results(collections)
        if not found.places:
            return self
        nbytes = {**self.nbytes, **found.nbytes}
        return dataclasses.replace(self, nbytes=nbytes, held={**found.places, **self.held})

    def save(self, path: str | Path) -> None:
        """Write to a Parquet file, which needs pyarrow."""
        columns = {"nbytes": self.nbytes, "seconds": self.seconds}
        columns["input_nbytes"] = self.input_nbytes
        costs_file.write(os.fspath(path), columns, {"overhead": self.overhead})

    @staticmethod
    def load(path: str | Path) -> Costs:
        """Read what `save` or `dask_marsched.record` wrote; ValueError if it is no such file."""
        columns, facts = costs_file.read(os.fspath(path))
        return Costs(**columns, overhead=facts.get("overhead", 1.0))

    @staticmethod
    def of(given: Any) -> Costs:
        """Return the costs for the argument ``costs`` of `simulate`; TypeError for other types."""
        if given is None:
            return Costs({})
        if isinstance(given, str | os.PathLike):
            return Costs.load(os.fspath(given))
        costs = getattr(given, "costs", given)
        if not isinstance(costs, Costs):
            raise TypeError(
                "costs must be None, Costs, a Recording or the path of a file that "
                f"dask_marsched.record wrote, not {given!r}"
            )
        return costs

    def renamed(self, dsk: Iterable[Any], exact: Mapping[Any, int] | None = None) -> Costs:
        """Return costs for a graph whose keys differ from the recorded ones in tokens only.

        Keys with new tokens take the costs of recorded keys of the same name and position, in
        order. If a size in ``exact`` or the number of tasks shows that the data differ, none do.
        """
        dsk = list(dsk)
        unknown = [key for key in dsk if key not in self.nbytes]
        if not unknown:
            return self
        present = set(dsk)
        recorded: dict[Any, list[Any]] = {}
        for key in self.nbytes:
            if key not in present:
                recorded.setdefault(without_token(key), []).append(key)
        names = {_name(bare) for bare in recorded}
        nbytes, seconds = dict(self.nbytes), dict(self.seconds)
        input_nbytes = dict(self.input_nbytes)
        for key in unknown:
            bare = without_token(key)
            candidates = recorded.get(bare, [])
            size = (exact or {}).get(key)
            match = next((k for k in candidates if size is None or self.nbytes[k] == size), None)
            if match is None and _name(bare) in names:
                return self
            if match is None:
                continue
            candidates.remove(match)
            nbytes[key] = self.nbytes[match]
            for mapping in (seconds, input_nbytes):
                if match in mapping:
                    mapping[key] = mapping[match]
        return dataclasses.replace(self, nbytes=nbytes, seconds=seconds, input_nbytes=input_nbytes)

    def covers(self, dsk: Mapping[Any, Any]) -> bool:
        """Return True if these are the costs of a graph, tokens aside."""
        known = self.renamed(dsk).nbytes
        return len(self.nbytes) == len(dsk) and all(key in known for key in dsk)


def _name(bare: Any) -> Any:
    return bare[0] if isinstance(bare, tuple) and bare else bare


def without_token(key: Any) -> Any:
    """Return a key without the token in its name."""
    if isinstance(key, tuple) and key:
        return (without_token(key[0]), *key[1:])
    return _TOKEN.sub("", key) if isinstance(key, str) else key


def record_costs(collection: Any, cache: str | Path | None = None) -> Costs:
    """Execute a graph once in this thread and record its costs, or read them from ``cache``."""
    items = list(collection) if isinstance(collection, (list, tuple)) else [collection]
    dsk, _ = materialize(*expression(items))
    if cache is not None and Path(cache).exists():
        try:
            cached = Costs.load(cache)
        except ValueError:  # of an older version
            cached = Costs({})
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
    nbytes, seconds, input_nbytes = dict[Any, int](), dict[Any, float](), dict[Any, int]()
    for key in sorted(dsk, key=order.__getitem__):
        task = dsk[key]
        inputs = {dependency: values[dependency] for dependency in task.dependencies}
        started = time.perf_counter()
        value = task(inputs)
        seconds[key] = time.perf_counter() - started
        nbytes[key] = sizeof(value)
        input_nbytes[key] = sum(nbytes[dependency] for dependency in task.dependencies)
        if uses.get(key):
            values[key] = value
        del inputs, value
        for dependency in task.dependencies:
            uses[dependency] -= 1
            if not uses[dependency]:
                del values[dependency]
    return Costs(nbytes, seconds, input_nbytes)
