"""Holds the known costs of tasks: seconds, and bytes of results."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import toolz  # type: ignore[import-untyped]  # it has no types

from dask_marsched.simulation.costs import costs_file
from dask_marsched.simulation.costs.held_results import Places, find_held_results

#: `Recording.overhead` of stock Dask, the mean over 22 workloads of `benchmarks` on 2 cores.
OVERHEAD = 1.2
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
    overhead: float = OVERHEAD  #: Default of ``overhead`` in `simulate`, see :class:`ClusterSpec`.
    #: Keys of the tasks that were recorded as a single one, by its key.
    joined: Mapping[Any, Sequence[Any]] = dataclasses.field(default_factory=dict)

    def holding(self, collections: Iterable[Any]) -> Costs:
        """Return these costs, completed by the results that futures in collections refer to."""
        nbytes, places = find_held_results(collections)
        if not places:
            return self
        nbytes = {**self.nbytes, **nbytes}
        return dataclasses.replace(self, nbytes=nbytes, held={**places, **self.held})

    def save(self, path: str | Path) -> None:
        """Write to a Parquet file."""
        costs_file.write(os.fspath(path), vars(self), {"overhead": self.overhead})

    @staticmethod
    def load(path: str | Path) -> Costs:
        """Read what `save` or `dask_marsched.record` wrote; ValueError if it is no such file."""
        columns, facts = costs_file.read(os.fspath(path))
        return Costs(**columns, overhead=facts.get("overhead", OVERHEAD))

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
        own = dict.fromkeys([*self.nbytes, *toolz.concat(self.joined.values())])
        unknown = [key for key in dsk if key not in own]
        if not unknown:
            return self
        present = set(dsk)
        absent = (key for key in own if key not in present)
        recorded: dict[Any, list[Any]] = toolz.groupby(without_token, absent)
        names = {_name(bare) for bare in recorded}
        nbytes, seconds = dict(self.nbytes), dict(self.seconds)
        input_nbytes = dict(self.input_nbytes)
        new: dict[Any, Any] = {}
        for key in unknown:
            bare = without_token(key)
            candidates = recorded.get(bare, [])
            size = (exact or {}).get(key)
            match = next((k for k in candidates if size in (None, self.nbytes.get(k, size))), None)
            if match is None and _name(bare) in names:
                return self
            if match is None:
                continue
            candidates.remove(match)
            new[match] = key
            for mapping in (nbytes, seconds, input_nbytes):
                if match in mapping:
                    mapping[key] = mapping[match]
        joined = {
            head: tuple(new.get(key, key) for key in members)
            for head, members in self.joined.items()
        }
        return dataclasses.replace(
            self, nbytes=nbytes, seconds=seconds, input_nbytes=input_nbytes, joined=joined
        )


def _name(bare: Any) -> Any:
    return bare[0] if isinstance(bare, tuple) and bare else bare


def without_token(key: Any) -> Any:
    """Return a key without the token in its name."""
    if isinstance(key, tuple) and key:
        return (without_token(key[0]), *key[1:])
    return _TOKEN.sub("", key) if isinstance(key, str) else key
