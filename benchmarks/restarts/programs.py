"""What runs while the scheduler is killed: workloads, a map, a P2P rechunk, persisted inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.utils import key_split
from distributed import Client, wait

from benchmarks.failover import WORKLOADS
from benchmarks.workloads import MIB, Parameters, get

TASKS = 10_000
_PARAMETERS = Parameters(1.0, MIB)
_SIDE = 256


@dataclass(frozen=True)
class Program:
    """A computation in two steps: data that the cluster holds, and the futures of a graph.

    `repeats` says of the name of a task that it is run again on purpose.
    """

    start: Callable[[Client, Any], list[Any]]
    hold: Callable[[], Any] = lambda: None
    repeats: Callable[[str], bool] = lambda name: False

    def prepare(self, client: Client) -> Any:
        """Return the data that the cluster holds, once it does."""
        lazy = self.hold()
        if lazy is None:
            return None
        held = client.persist(lazy)
        wait(held)
        return held


def _workload(name: str) -> Program:
    def start(client: Client, held: Any) -> list[Any]:
        found: list[Any] = client.compute(list(get(name).build(_PARAMETERS)))
        return found

    return Program(start)


def _increment(i: int) -> int:
    return i + 1


def map_numbers(client: Client, count: int) -> list[Any]:
    """Return futures of as many tiny tasks."""
    found: list[Any] = client.map(_increment, range(count))
    return found


def _field(chunks: int) -> Any:
    side = chunks * _SIDE
    return da.random.default_rng(0).random((side, side), chunks=_SIDE)


def _rechunk(client: Client, held: Any) -> list[Any]:
    with dask.config.set({"array.rechunk.method": "p2p"}):
        columns = held.rechunk((-1, _SIDE // 4))
    found: list[Any] = client.compute([(columns * 2).sum(axis=0), columns[::64, :]])
    return found


def _is_of_a_shuffle(name: str) -> bool:
    return any(part in name for part in ("rechunk", "p2p", "barrier"))


def _reuse(client: Client, held: Any) -> list[Any]:
    parts = [held.mean(axis=0), (held * held).sum(), (held - held.mean()).std(), held.T + held]
    found: list[Any] = client.compute([*parts[:3], parts[3][::128]])
    return found


PROGRAMS: Mapping[str, Program] = {
    **{name: _workload(name) for name in WORKLOADS},
    f"map {TASKS:,}": Program(lambda client, held: map_numbers(client, TASKS)),
    "P2P rechunk": Program(_rechunk, lambda: _field(16), _is_of_a_shuffle),
    "persisted inputs": Program(_reuse, lambda: np.sqrt(_field(24))),
}


def computed_again(program: Program, runs: Mapping[Any, list[float]]) -> dict[Any, list[float]]:
    """Return the tasks that ran more than once."""
    return {
        key: times
        for key, times in runs.items()
        if len(times) > 1 and not program.repeats(key_split(key))
    }
