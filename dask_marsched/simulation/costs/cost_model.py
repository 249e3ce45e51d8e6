"""Determines the cost of each task of a graph from the best source available."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dask.utils import key_split

from dask_marsched.host.graph.fused_tasks import targets
from dask_marsched.host.graph.result_sizes import chunk_nbytes
from dask_marsched.host.twin.operation_kinds import TaskOperations
from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.derived import OVERHEAD, derived_seconds, fill_missing_sizes

#: Seconds, and bytes per second, of a usual task. Ratios to it carry durations over to other sizes.
_USUAL = (0.0005, 1e9)

#: Seconds to pick one of several results. Not 0: work stealing takes that for a task that seceded.
_PICK = 1e-6


class CostModel:
    """Look up, derive, learn or guess the cost of each task of a graph.

    Sources of a size, in this order: recorded for this key, or for the same task of a graph that
    differs in tokens only; known from the graph; learnt from the recorded tasks of its group;
    estimated from the graph; guessed from its inputs. Durations are recorded, learnt, or derived
    from sizes, for stock Dask or for the plugin.
    """

    def __init__(
        self, expr: Any, dsk: Mapping[Any, Any], costs: Costs, *, plugin: bool = False
    ) -> None:
        #: Tasks by source; a result on the cluster is ``held``.
        self.sizes: Counter[str] = Counter()
        self.durations: Counter[str] = Counter()  #: Tasks by source.
        self.joined: Counter[str] = Counter()  #: Fused tasks by the operations in them.
        known = chunk_nbytes(expr, dsk, counts_once=plugin)
        groups = _GroupMeans(costs)
        costs = costs.renamed(dsk, known.exact)
        nbytes = self._sized(dsk, costs, groups, known.exact, known.estimated)
        operations = TaskOperations(expr, dsk, nbytes)
        recorded = {**costs.seconds, **_apart(costs, dsk, operations)}
        self._costs: dict[Any, tuple[float, int]] = {}
        self._derived: set[Any] = set()
        for key, task in dsk.items():
            if key in costs.held:
                self._costs[key] = (0.0, nbytes[key])
                continue
            seconds = recorded.get(key)
            source = "recorded"
            if seconds is None:
                touched = nbytes[key] + sum(nbytes[other] for other in task.dependencies)
                seconds, source = groups.seconds(key, touched), "learnt"
            if seconds is None:
                seconds, source = derived_seconds(operations.of(key), plugin=plugin), "derived"
                self._derived.add(key)
            self.durations[source] += 1
            self._costs[key] = (seconds, nbytes[key])

    def _sized(
        self,
        dsk: Mapping[Any, Any],
        costs: Costs,
        groups: _GroupMeans,
        exact: Mapping[Any, int],
        estimated: Mapping[Any, int],
    ) -> dict[Any, int]:
        nbytes: dict[Any, int] = {}
        for key in dsk:
            if key in costs.nbytes:
                nbytes[key] = int(costs.nbytes[key])
                self.sizes["held" if key in costs.held else "recorded"] += 1
            elif key in exact:
                nbytes[key] = exact[key]
                self.sizes["known"] += 1

        def likely(key: Any) -> int | None:
            learnt = groups.nbytes(key, sum(nbytes[other] for other in dsk[key].dependencies))
            self.sizes["guessed" if learnt is None else "learnt"] += 1
            return estimated.get(key) if learnt is None else learnt

        fill_missing_sizes(dsk, nbytes, likely)
        return nbytes

    def bundle(self, bundles: Mapping[Any, Sequence[Any]]) -> None:
        """Set the costs of tasks that make several results at once, or pick one of them."""
        for key, members in bundles.items():
            nbytes = sum(self._costs[member][1] for member in members)
            if len(members) == 1:
                self._costs[key] = (_PICK, nbytes)
                self._derived.discard(key)
            else:
                self._costs[key] = (self._together(members), nbytes)
                if not self._derived.isdisjoint(members):
                    self._derived.add(key)

    def join(self, groups: Mapping[Any, Iterable[Any]]) -> None:
        """Set the durations of fused tasks, from the members of each."""
        for key, members in groups.items():
            members = list(members)
            self.joined[" + ".join(dict.fromkeys(map(key_split, members)))] += 1
            self._costs[key] = (self._together(members), self._costs[key][1])

    def _together(self, members: Sequence[Any]) -> float:
        """Return the seconds of a task made of several; its overhead counts once."""
        derived = sum(member in self._derived for member in members)
        total = sum(self._costs[member][0] for member in members)
        return total - OVERHEAD * max(0, derived - 1)

    def __call__(self, key: Any) -> tuple[float, int]:
        """Return the seconds and bytes of a task."""
        return self._costs[key]


def _apart(costs: Costs, dsk: Mapping[Any, Any], operations: TaskOperations) -> dict[Any, float]:
    """Return the durations of tasks that were recorded as one, which share that one's.

    The shares are in proportion to their derived durations.
    """
    # With the plugin an alias and its target are one task, which is recorded under the alias.
    stands_for = {key: name for key, name in targets(dsk).items() if name not in costs.seconds}
    found: dict[Any, float] = {}
    for head, members in [*((key, (key,)) for key in stands_for), *costs.joined.items()]:
        own = [key for key in members if key in dsk]
        own += [stands_for[key] for key in own if key in stands_for]
        if own and head in costs.seconds:
            derived = {key: derived_seconds(operations.of(key)) for key in own}
            scale = costs.seconds[head] / sum(derived.values())
            found.update((key, scale * seconds) for key, seconds in derived.items())
    return found


class _GroupMeans:
    """Means over the recorded tasks of each group (``dask.utils.key_split``), not joined ones."""

    def __init__(self, costs: Costs) -> None:
        self._results: dict[str, tuple[int, int, int]] = {}
        self._durations: dict[str, tuple[float, float]] = {}
        fixed, rate = _USUAL
        for key, size in costs.nbytes.items():
            inputs = costs.input_nbytes.get(key)
            if inputs is None or key in costs.joined:
                continue
            group = key_split(key)
            count, read, made = self._results.get(group, (0, 0, 0))
            self._results[group] = (count + 1, read + inputs, made + size)
            if key in costs.seconds:
                took, usual = self._durations.get(group, (0.0, 0.0))
                usual += fixed + (inputs + size) / rate
                self._durations[group] = (took + costs.seconds[key], usual)

    def nbytes(self, key: Any, inputs: int) -> int | None:
        """Return the likely size of a result, in proportion to the bytes of its inputs."""
        found = self._results.get(key_split(key))
        if found is None:
            return None
        count, read, made = found
        return made * inputs // read if read and inputs else made // count

    def seconds(self, key: Any, touched: int) -> float | None:
        """Return the likely duration of a task that reads and writes ``touched`` bytes."""
        found = self._durations.get(key_split(key))
        if found is None:
            return None
        took, usual = found
        fixed, rate = _USUAL
        return took / usual * (fixed + touched / rate)
