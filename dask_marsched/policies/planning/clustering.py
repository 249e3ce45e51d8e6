"""Clustering of initial operands under a bound on memory."""

from __future__ import annotations

from collections.abc import Sequence

from dask_marsched.core.graph import NO_HOME, OperandGraph, depths, typical_nbytes
from dask_marsched.core.roles import Roles


class Clusters:
    """Disjoint sets of initial operands, each with what running it alone would hold.

    A cluster is known by the number of one of its initial operands, its root in the union-find
    forest. All sizes are in bytes.

    Attributes
    ----------
    count
        Number of initial operands.
    live
        Bytes of results still needed once all that was visited of the cluster has run, but for
        what has to wait for a hub.
    peak
        Most bytes held while running the cluster alone, member after member.
    first
        The lowest number, that is the best priority, of its initial operands.
    home, home_bytes
        Worker that holds most of what its initial operands read from memory; bytes of it.
    """

    __slots__ = ("_parent", "count", "first", "home", "home_bytes", "live", "peak")

    def __init__(self, graph: OperandGraph, initial: list[int], late: Sequence[bool]) -> None:
        self._parent = list(range(len(graph)))
        self.count = dict.fromkeys(initial, 1)
        self.first = {i: i for i in initial}
        self.live = {i: 0.0 if late[i] else float(graph.nbytes[i]) for i in initial}
        self.peak = dict(self.live)
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
        """Return the peak of `a` and then `b` run on one worker, then a join of `result`."""
        live = self.live
        return max(self.peak[a], live[a] + self.peak[b], live[a] + live[b] + result)

    def moved_by_merging(self, a: int, b: int) -> float:
        """Return the bytes in memory elsewhere that one of two clusters would have to fetch."""
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
        """Add a result to what a cluster holds."""
        live = self.live[cluster] = self.live[cluster] + nbytes
        if live > self.peak[cluster]:
            self.peak[cluster] = live


def cluster_initial_operands(
    graph: OperandGraph, role: Roles, *, stake: float, kappa: float, limit: int
) -> list[list[int]]:
    """Group the initial operands of a graph, once (`Clustering`)."""
    return Clustering(graph, role, stake=stake).groups(kappa=kappa, limit=limit)


class Clustering:
    """Groups the initial operands of a graph, for one bound after the other.

    What does not depend on the bounds is looked up once: it takes as long as to group them.

    Parameters
    ----------
    graph
        The graph.
    role
        Its hubs and initial operands.
    stake
        Least part of a typical initial result that each side of a merge brings into a join.
    """

    def __init__(self, graph: OperandGraph, role: Roles, *, stake: float) -> None:
        hub, initial = role.hub, role.initial
        inputs = list(graph.inputs)
        self._graph = graph
        self._initial = role.initial_operands()
        self._late = late = _late(inputs, hub)
        self._typical = typical_nbytes(graph, self._initial)
        self._least = stake * self._typical
        self._unread = [len(dependents) for dependents in graph.dependents]
        depth = depths(graph, [bool(a or b) for a, b in zip(initial, hub, strict=True)])
        others = [i for i in graph if not initial[i] and not (hub[i] and not inputs[i])]
        others.sort(key=depth.__getitem__)  # stable: those as deep in their order of priority
        # Each other operand with what it adds, what it reads that is not read by too many, and what
        # it is done with.
        self._visits = [
            (
                t,
                0.0 if late[t] else float(graph.nbytes[t]),
                [j for j in inputs[t] if not hub[j]],
                [] if late[t] else inputs[t],  # what it reads waits for the hub until then
            )
            for t in others
        ]

    def groups(self, *, kappa: float, limit: int) -> list[list[int]]:
        """Group the initial operands.

        Parameters
        ----------
        kappa
            Bound on what a cluster holds, in typical initial results.
        limit
            Most initial operands in a cluster.

        Returns
        -------
        list of lists of int
            The clusters' initial operands, in no particular order.
        """
        nbytes, late = self._graph.nbytes, self._late
        clusters = Clusters(self._graph, self._initial, late)
        find, live, first = clusters.find, clusters.live, clusters.first
        least, most = self._least, kappa * self._typical
        # The cluster that holds an operand's result, as an initial operand of it; -1: none.
        holder = [-1] * len(self._graph)
        for i in self._initial:
            holder[i] = i
        unread = self._unread.copy()
        for t, result, telling, done_with in self._visits:
            brought: dict[int, float] = {}
            for j in telling:
                if holder[j] >= 0:
                    cluster = find(holder[j])
                    brought[cluster] = brought.get(cluster, 0.0) + nbytes[j]
            if len(brought) > 1:
                brought = _merge_inputs(clusters, brought, result, least, most, limit)
            if brought:
                # On a tie the later cluster, which has more room: a chain goes on in it, instead of
                # staying for ever with the first cluster that could take no more.
                mine = holder[t] = (
                    max(brought, key=lambda c: (brought[c], first[c]))
                    if len(brought) > 1
                    else next(iter(brought))
                )
                if not late[t]:
                    clusters.produce(mine, result)
            for j in done_with:
                unread[j] -= 1
                if not unread[j] and holder[j] >= 0:
                    live[find(holder[j])] -= nbytes[j]
        groups: dict[int, list[int]] = {}
        for i in self._initial:
            groups.setdefault(find(i), []).append(i)
        return list(groups.values())


def _late(inputs: Sequence[Sequence[int]], hub: bytes) -> list[bool]:
    """Return whether each operand waits for a hub that others have to run for.

    What a unit has to hold until then it holds along with all the rest of it. What runs then is
    another phase, in which memory sinks: it takes nothing of the bound. Means by month, on 100
    workers, were in units of eight chunks for which a bound of four was kept on paper, so that four
    months were under way at a time at least, and held twice what stock Dask holds.
    """
    late = [False] * len(inputs)
    for i, own in enumerate(inputs):
        for j in own:
            if late[j] or (hub[j] and inputs[j]):
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

    A cluster that cannot take the next one in is closed, and the next one goes on: of eight
    results that meet where only four fit together, two units of four come out. What has to be
    fetched for it is taken off what the merge saves: for a few bytes more chunks would leave the
    workers that have them.
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
        # Crumbs never become the seed of a unit while something larger could be it.
        if current < 0 or stake >= least:
            current = cluster
    return merged
