"""Clusters initial operands under an upper bound on memory."""

from __future__ import annotations

from collections.abc import Sequence

from dask_marsched.core.graph import NO_HOME, OperandGraph, depths, typical_nbytes
from dask_marsched.core.roles import Roles


class Clusters:
    """Disjoint sets of initial operands, by union-find root, with the bytes that each takes."""

    __slots__ = ("_parent", "count", "first", "home", "home_bytes", "live", "peak")

    def __init__(self, graph: OperandGraph, initial: list[int], late: Sequence[bool]) -> None:
        self._parent = list(range(len(graph)))
        self.count = dict.fromkeys(initial, 1)  #: Number of initial operands.
        self.first = {i: i for i in initial}  #: Best priority (lowest number) of its operands.
        #: Bytes still needed after its visited operands, without results that wait for a hub.
        self.live = {i: 0.0 if late[i] else float(graph.nbytes[i]) for i in initial}
        self.peak = dict(self.live)  #: Most bytes held when running the cluster alone.
        #: The worker that holds most of its inputs in memory, and their bytes there.
        self.home = {i: graph.home[i] for i in initial}
        self.home_bytes = {i: graph.home_bytes[i] for i in initial}

    def find(self, i: int) -> int:
        """Return the cluster of an initial operand (path halving)."""
        parent = self._parent
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def merged_peak(self, a: int, b: int, result: float) -> float:
        """Return the peak of running `a`, `b`, and a join with a result of this many bytes."""
        live = self.live
        return max(self.peak[a], live[a] + self.peak[b], live[a] + live[b] + result)

    def moved_by_merging(self, a: int, b: int) -> float:
        """Return the bytes in memory that one of two merged clusters would have to fetch."""
        homes = self.home[a], self.home[b]
        if homes[0] == homes[1] or NO_HOME in homes:
            return 0.0
        return min(self.home_bytes[a], self.home_bytes[b])

    def merge(self, a: int, b: int) -> int:
        """Merge two clusters and return the merged one."""
        if self.first[b] < self.first[a]:
            a, b = b, a
        peak = max(self.peak[a], self.live[a] + self.peak.pop(b))
        if self.home_bytes[b] > self.home_bytes[a]:
            self.home[a], self.home_bytes[a] = self.home[b], self.home_bytes[b]
        self._parent[b] = a
        self.count[a] += self.count.pop(b)
        self.live[a] += self.live.pop(b)
        self.peak[a] = peak
        return a

    def produce(self, cluster: int, nbytes: float) -> None:
        """Add a result to a cluster."""
        live = self.live[cluster] = self.live[cluster] + nbytes
        if live > self.peak[cluster]:
            self.peak[cluster] = live


class Clustering:
    """Clusters initial operands; each side of a merge brings `stake` typical results to a join."""

    def __init__(self, graph: OperandGraph, role: Roles, *, stake: float) -> None:
        hub, initial = role.hub, role.initial
        inputs = list(graph.inputs)
        self._graph = graph
        self._initial = role.initial_operands()
        self._late = late = _late(inputs, hub, graph.pieces)
        self._typical = typical_nbytes(graph, self._initial)
        self._least = stake * self._typical
        self._unread = [len(dependents) for dependents in graph.dependents]
        depth = depths(graph, [bool(a or b) for a, b in zip(initial, hub, strict=True)])
        others = [i for i in graph if not initial[i] and not (hub[i] and not inputs[i])]
        others.sort(key=depth.__getitem__)  # stable: those as deep in their order of priority
        # For each other operand: its number, bytes added, inputs that are no hubs, inputs released.
        self._visits = [
            (
                t,
                0.0 if late[t] else float(graph.nbytes[t]),
                [j for j in inputs[t] if not hub[j]],
                [] if late[t] else inputs[t],  # a late operand's inputs wait for the hub
            )
            for t in others
        ]

    def groups(self, *, kappa: float, limit: int) -> list[list[int]]:
        """Return clusters of at most `limit` operands that hold at most `kappa` typical results."""
        nbytes, late = self._graph.nbytes, self._late
        clusters = Clusters(self._graph, self._initial, late)
        find, live, first = clusters.find, clusters.live, clusters.first
        least, most = self._least, kappa * self._typical
        # By operand, an initial operand of the cluster that holds its result, or -1.
        holder = [-1] * len(self._graph)
        for i in self._initial:
            holder[i] = i
        unread = self._unread.copy()
        for t, result, not_hubs, released in self._visits:
            brought: dict[int, float] = {}
            for j in not_hubs:
                if holder[j] >= 0:
                    cluster = find(holder[j])
                    brought[cluster] = brought.get(cluster, 0.0) + nbytes[j]
            if len(brought) > 1:
                brought = _merge_inputs(clusters, brought, result, least, most, limit)
            if brought:
                # On a tie the later cluster, which has more room, so that a chain continues in it.
                mine = holder[t] = (
                    max(brought, key=lambda c: (brought[c], first[c]))
                    if len(brought) > 1
                    else next(iter(brought))
                )
                if not late[t]:
                    clusters.produce(mine, result)
            for j in released:
                unread[j] -= 1
                if not unread[j] and holder[j] >= 0:
                    live[find(holder[j])] -= nbytes[j]
        groups: dict[int, list[int]] = {}
        for i in self._initial:
            groups.setdefault(find(i), []).append(i)
        return list(groups.values())


def _late(inputs: Sequence[Sequence[int]], hub: bytes, pieces: frozenset[int]) -> list[bool]:
    """Return whether each operand waits for a hub with inputs that is no piece.

    Until the hub is there, a unit keeps the inputs of its late operands, so these count for the
    bound. Memory sinks afterwards, so late results do not count. When inputs counted as released,
    means by month on 100 workers held twice stock Dask's memory.
    """
    late = [False] * len(inputs)
    for i, own in enumerate(inputs):
        for j in own:
            if late[j] or (hub[j] and inputs[j] and j not in pieces):
                late[i] = True
                break
    return late


def _merge_inputs(
    clusters: Clusters,
    brought: dict[int, float],
    result: float,
    least: float,
    most: float,
    limit: int,
) -> dict[int, float]:
    """Merge the clusters that meet in one operand, in order of priority, where it pays.

    A cluster that cannot take in the next one is closed: of eight results of which four fit
    together, two units of four result. Bytes that a merge would fetch reduce what it saves.
    """
    merged: dict[int, float] = {}
    current = -1
    for cluster in sorted(brought, key=clusters.first.__getitem__):
        stake = brought[cluster]
        if current >= 0:
            both = min(merged[current], stake)
            if (
                both - clusters.moved_by_merging(current, cluster) >= least
                and clusters.count[current] + clusters.count[cluster] <= limit
                and clusters.merged_peak(current, cluster, result) <= most
            ):
                total = merged.pop(current) + stake
                current = clusters.merge(current, cluster)
                merged[current] = total
                continue
        merged[cluster] = stake
        # Small results do not seed a unit if a larger one can.
        if current < 0 or stake >= least:
            current = cluster
    return merged
