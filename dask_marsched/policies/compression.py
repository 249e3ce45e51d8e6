"""Compression: which operands of a graph become one.

Every group of operands that is joined has one result, that of its *head*, the operand through
which alone the others are read. So nothing that anybody else needs disappears, and no cycle
arises: what a group reads was there before, and what reads the group reads its head (`compress`).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dask_marsched.core.graph import OperandGraph, typical_nbytes

N = TypeVar("N", int, str)

#: What an operand may be joined with.
FREE, VISIBLE, ALONE = 0, 1, 2

#: Bytes a second that an operand touches; those that come from no other take longer. As in
#: `dask_marsched.policies.planning.forecast`.
_BANDWIDTH, _SOURCE = 1e9, 2e8
#: Seconds that any operand takes at least.
_OVERHEAD = 1e-3
#: Bytes that are fetched in the time that one more task costs.
CRUMB = 64 * 2**10
#: Operands of a group at most: its specification is one message.
_MOST_OPERANDS = 2000
#: What a group may hold, in typical initial results: about what a unit of operands may.
_KAPPA = 8.0
#: Groups that are left for each thread, at least: enough to even out what they take.
_GROUPS = 8
#: Groups whose operands take about as long are joined to a head all or none.
_ALIKE = 2.0


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Bounds of what is joined beyond single lines.

    Attributes
    ----------
    nbytes
        Most bytes of results that running a group alone may hold, beside what it reads.
    groups
        The longest path through the graph may grow by the time of all operands on one thread,
        divided by this. So there are at least about so many groups where there was enough to
        do for so many threads.
    batches
        For each operand of which nobody knows how long it takes the name of those like it, None
        for the others. There are as many groups with some of them as `groups` says, or each is in
        another one. Empty: all are known.
    small
        Bytes up to which a result that very many read may as well be on every worker.
    """

    nbytes: float
    groups: int
    batches: Sequence[str | None] = ()
    small: float = 0.0


def group_bounds(
    graph: OperandGraph,
    *,
    threads: int,
    thread_memory: float,
    batches: Sequence[str | None] = (),
) -> GroupBounds:
    """Return the bounds for a graph.

    Parameters
    ----------
    graph
        The graph.
    threads
        Threads of the cluster. Fewer than eight count as eight: others may join.
    thread_memory
        Bytes of memory for each thread of a worker, 0 where it is unlimited. A group may hold an
        eighth of it.
    batches
        See `GroupBounds`.
    """
    typical = typical_nbytes(graph, [i for i in graph if not graph.inputs[i]])
    most = max(_KAPPA * typical, 16 * CRUMB)
    if thread_memory:
        most = min(most, thread_memory / 8)
    return GroupBounds(most, _GROUPS * max(8, threads), batches, typical / 4)


def compress(
    graph: OperandGraph,
    roles: Sequence[int],
    kinds: Sequence[int],
    limits: GroupBounds | None = None,
) -> list[int]:
    """Decide which operands become one.

    Single lines always do: an operand that alone reads another, and nothing else. That moves no
    more bytes, holds no more memory, and nothing of it could have run at the same time.

    Beyond them an operand joins the head that alone reads it (through others of the group, maybe)
    where

    - what it reads and the group does not is not larger than its own result. So wherever
      Dask would have run its operands, the group can run without more bytes being moved,
      and it does not hold more while it waits for other inputs;
    - running the group alone, one operand after the other, does not hold more than the bound;
    - what very many read, and this input does not, is not much larger, or of unknown size: else
      the input would be made only where that has come, or be bound to where it is;
    - the longest path through the graph does not grow by more than its bound;
    - no more operands of a batch of unknown duration come into a group than its bound says.

    Parameters
    ----------
    graph
        The graph; any topological numbering will do.
    roles
        For each operand `FREE`, `VISIBLE` (others need its result: it may only be a head), or
        `ALONE` (it is joined with nothing).
    kinds
        Operands are joined only with those of the same kind.
    limits
        Bounds of what is joined beyond single lines; None for single lines only.

    Returns
    -------
    list of int
        For each operand the head of its group, which is the operand itself where it is one.
    """
    return _Compression(graph, roles, kinds, limits).run()


def durations(graph: OperandGraph) -> list[float]:
    """Return for each operand the seconds that it takes, guessed from the bytes it touches."""
    nbytes, out = graph.nbytes, []
    for i, own in enumerate(graph.inputs):
        if own:
            touched = nbytes[i]
            for j in own:
                touched += nbytes[j]
            out.append(touched / _BANDWIDTH + _OVERHEAD)
        else:
            out.append(nbytes[i] / _SOURCE + _OVERHEAD)
    return out


@dataclass(slots=True)
class _Group:
    """A group as it grows.

    Attributes
    ----------
    reads
        How often each operand outside of the group is read by members.
    members
        The operands but the head.
    seconds
        What all members take, one after the other.
    peak
        Bytes that running it alone holds at most, beside what it reads.
    batches
        How many members there are of each batch.
    little
        Whether it brings little into any other group (`_Compression._brings_little`), as far as
        that is known.
    """

    reads: dict[int, int]
    seconds: float
    peak: float
    members: list[int] = field(default_factory=list)
    batches: dict[str, int] = field(default_factory=dict)
    little: bool = False


class _Compression:
    def __init__(
        self,
        graph: OperandGraph,
        roles: Sequence[int],
        kinds: Sequence[int],
        limits: GroupBounds | None,
    ) -> None:
        self.graph = graph
        self.roles, self.kinds, self.limits = roles, kinds, limits
        self.nbytes = graph.nbytes
        starts = graph.dependents.starts
        self.readers = [b - a for a, b in itertools.pairwise(starts)]
        #: As `core.roles.Roles.shared`.
        self.shared = max(16.0, math.sqrt(len(graph)) / 2)
        self.groups: dict[int, _Group] = {}
        #: When each head's result is there at the earliest, as things stand and as they were.
        self.finish = [0.0] * len(graph)
        self.slack = 0.0
        #: Most operands of each batch in a group.
        self.shares: dict[str, int] = {}
        if limits is not None:
            sizes = Counter(name for name in limits.batches if name is not None)
            self.shares = {name: max(1, n // limits.groups) for name, n in sizes.items()}

    def run(self) -> list[int]:
        """Visit the operands, inputs first, and let each draw its inputs into its group."""
        graph, limits = self.graph, self.limits
        seconds = durations(graph) if limits else []
        before = [0.0] * len(graph)
        if limits:
            self.slack = sum(seconds) / limits.groups
        groups, roles, finish = self.groups, self.roles, self.finish
        # What a single operand reads: other inputs are drawn by a group that reads them several
        # times, and that has to have drawn one of these before.
        drawable = [
            times == 1 and not role for times, role in zip(self.readers, roles, strict=True)
        ]
        for i, own in enumerate(graph.inputs):
            if not limits:
                if len(own) == 1 and self._joinable(own[0], i):
                    self._draw_line(i, own[0])
                continue
            groups[i] = group = _Group(dict.fromkeys(own, 1), seconds[i], self.nbytes[i])
            if self.shares and (name := limits.batches[i]) is not None:
                group.batches[name] = 1
            if not own:
                before[i] = finish[i] = seconds[i]
                continue
            before[i] = max([before[j] for j in own]) + seconds[i]
            if roles[i] != ALONE and any(drawable[j] for j in own):
                while self._grow(i, group, before[i] + self.slack):
                    pass
            finish[i] = self._start(group.reads) + group.seconds
        heads = list(graph)
        for i, group in groups.items():
            for j in group.members:
                heads[j] = i
        return heads

    def _joinable(self, j: int, head: int) -> bool:
        return (
            not self.roles[j]
            and self.readers[j] == 1
            and self.roles[head] != ALONE
            and self.kinds[j] == self.kinds[head]
        )

    def _draw_line(self, head: int, j: int) -> None:
        group = self.groups.get(j) or _Group({}, 0.0, 0.0)
        if len(group.members) >= _MOST_OPERANDS:
            return
        self.groups.pop(j, None)
        group.members.append(j)
        self.groups[head] = group

    def _start(self, reads: dict[int, int]) -> float:
        finish = self.finish
        return max([finish[j] for j in reads], default=0.0)

    def _grow(self, head: int, group: _Group, latest: float) -> bool:
        """Draw inputs into a group; True if there may be more to draw now."""
        roles, readers, kinds, kind = self.roles, self.readers, self.kinds, self.kinds[head]
        reads = group.reads
        found = [
            j
            for j, times in reads.items()
            if times == readers[j] and not roles[j] and kinds[j] == kind
        ]
        if not found:
            return False
        if len(reads) == 1:  # a single line
            members = len(group.members) + len(self.groups[found[0]].members)
            if members >= _MOST_OPERANDS:
                return False
            self._draw(group, found)
            return True
        assert self.limits is not None
        found = [j for j in found if self.groups[j].little or self._brings_little(j, reads)]
        if found and (hubs := self._hubs(reads, max([self.nbytes[j] for j in found]))):
            found = [j for j in found if all(k in self.groups[j].reads for k in hubs)]
        found.sort(key=lambda j: self.groups[j].seconds)
        grown = False
        for alike in self._alike(found):
            if self._fits(group, alike, latest):
                self._draw(group, alike)
                grown = True
        return grown

    def _brings_little(self, j: int, reads: dict[int, int]) -> bool:
        """Whether what an input reads, and nothing in the group does, is no larger than itself.

        What so many read that it is on every worker sooner or later does not count, unless it is
        large, and all: then the input is a piece that is cut off it, where it is.
        """
        nbytes, readers, group = self.nbytes, self.readers, self.groups[j]
        small = self.limits.small if self.limits is not None else 0.0
        most = max(nbytes[j], CRUMB)
        new = shared = new_to_any = shared_by_any = 0.0
        for k in group.reads:
            size = nbytes[k]
            if readers[k] <= self.shared:
                new_to_any += size
                if k not in reads:
                    new += size
            elif size > small:
                shared_by_any += size
                if k not in reads:
                    shared += size
        group.little = new_to_any <= most and shared_by_any <= most
        return (new or shared) <= most

    def _hubs(self, reads: dict[int, int], drawn: float) -> list[int]:
        """Return what very many read that is much larger than what is drawn, or may be."""
        nbytes, readers, known = self.nbytes, self.readers, self.graph.known
        most = _KAPPA * max(drawn, CRUMB)
        return [k for k in reads if readers[k] > self.shared and (not known[k] or nbytes[k] > most)]

    def _alike(self, found: list[int]) -> list[list[int]]:
        """Cut inputs, in the order of their durations, into those that take about as long.

        To draw some of a kind and leave the others would make threads wait for no use.
        """
        runs: list[list[int]] = []
        first = 0.0
        for j in found:
            seconds = self.groups[j].seconds
            if not runs or seconds > _ALIKE * first:
                runs.append([])
                first = seconds
            runs[-1].append(j)
        return runs

    def _fits(self, group: _Group, found: list[int], latest: float) -> bool:
        assert self.limits is not None
        groups = self.groups
        seconds = sum([groups[j].seconds for j in found])
        if group.seconds + seconds > latest:  # whenever it can begin
            return False
        members = len(group.members) + len(found) + sum([len(groups[j].members) for j in found])
        if members > _MOST_OPERANDS or self._peak(group, found) > self.limits.nbytes:
            return False
        if self.shares and not self._spread(group, found):
            return False
        reads = dict(group.reads)
        for j in found:
            del reads[j]
        for j in found:
            reads.update(groups[j].reads)
        return self._start(reads) + group.seconds + seconds <= latest

    def _spread(self, group: _Group, found: list[int]) -> bool:
        together = group.batches.copy()
        for j in found:
            _add(together, self.groups[j].batches)
        shares = self.shares
        return all(count <= shares[name] for name, count in together.items())

    def _peak(self, group: _Group, found: list[int]) -> float:
        """Return the peak of a group that runs these inputs first, those that shrink most ahead."""
        nbytes, groups = self.nbytes, self.groups
        live = peak = 0.0
        if len(found) > 1:
            found = sorted(found, key=lambda j: nbytes[j] - groups[j].peak)
        for j in found:
            peak = max(peak, live + groups[j].peak)
            live += nbytes[j]
        return max(peak, live + group.peak)

    def _draw(self, group: _Group, found: list[int]) -> None:
        if self.limits:
            group.peak = self._peak(group, found)
        reads = group.reads
        for j in found:
            del reads[j]
            other = self.groups.pop(j)
            group.seconds += other.seconds
            _add(group.batches, other.batches)
            group.members.append(j)
            group.members.extend(other.members)
            if len(other.reads) > len(reads):
                reads, other.reads = other.reads, reads
            _add(reads, other.reads)
        group.reads = reads


def _add(counts: dict[N, int], more: dict[N, int]) -> None:
    for k, times in more.items():
        counts[k] = counts.get(k, 0) + times
