"""Groups the operands of a graph that run as one task: `group_heads`.

The result of a group is that of its *head*, through which alone its other operands are read. So no
result that others need disappears, and no cycle arises.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dask_marsched.core.graph import OperandGraph, typical_nbytes
from dask_marsched.policies.planning.forecast import durations

N = TypeVar("N", int, str)

#: Roles of operands (`group_heads`).
FREE, VISIBLE, ALONE = 0, 1, 2

CRUMB = 64 * 2**10  #: Bytes that can be fetched in the time that a task costs.
_MOST_OPERANDS = 2000  #: Most operands of a group: its specification is one message.
_KAPPA = 8.0  #: Most typical initial results that a group may hold, about as a unit.
_GROUPS = 8  #: Least number of groups for each thread, for load balance.
_ALIKE = 2.0  #: Durations within this ratio are similar: such inputs are joined all or none.


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """Bounds on groups other than chains."""

    nbytes: float  #: Most bytes of results that a group run alone may hold, without its inputs.
    #: About the least number of groups. The critical path may grow by all seconds of work, divided
    #: by this number.
    groups: int
    #: The batch of each operand, None if its duration is known; it is spread over `groups` groups.
    batches: Sequence[str | None] = ()
    #: Bytes that each operand makes on the way to its result; () if none makes more than that.
    made: Sequence[float] = ()
    small: float = 0.0  #: Bytes up to which a hub's result may be copied to every worker.


def group_bounds(
    graph: OperandGraph,
    *,
    threads: int,
    thread_memory: float,
    batches: Sequence[str | None] = (),
    made: Sequence[float] = (),
) -> GroupBounds:
    """Return the bounds for a graph on a cluster of at least 8 threads, as workers may join.

    A group may hold an eighth of the bytes of a thread, `thread_memory` (0 for unlimited).
    """
    starts = graph.inputs.starts
    typical = typical_nbytes(graph, [i for i in graph if starts[i] == starts[i + 1]])
    most = max(_KAPPA * typical, 16 * CRUMB)
    if thread_memory:
        most = min(most, thread_memory / 8)
    return GroupBounds(most, _GROUPS * max(8, threads), batches, made, typical / 4)


def group_heads(
    graph: OperandGraph,
    roles: Sequence[int],
    kinds: Sequence[int],
    limits: GroupBounds | None = None,
) -> list[int]:
    """Return for each operand the head of its group, or itself.

    Only operands of the same kind and of role `FREE` join a head. The head may also be `VISIBLE`,
    which means that its result is needed. Without limits only chains are joined. A chain, in which
    an operand is the only reader of its only input, is always joined: that moves and holds no more
    bytes and loses no parallelism. Other operands join the head that alone reads them, directly or
    through others of the group, if

    - they read no more bytes outside of the group's inputs than their own result has. So wherever
      Dask would run them, the group can run without more bytes moved;
    - the group does not exceed the memory bound, nor its share of a batch of unknown duration;
    - they share the group's large hubs: otherwise they would have to run where the hub is;
    - the critical path does not grow beyond its bound.
    """
    if limits is None:
        joined = _lines(graph, roles, kinds)
    else:
        groups = _Grouping(graph, roles, kinds, limits).run()
        joined = {head: group.members for head, group in groups.items()}
    heads = list(graph)
    for head, members in joined.items():
        for j in members:
            heads[j] = head
    return heads


def _lines(graph: OperandGraph, roles: Sequence[int], kinds: Sequence[int]) -> dict[int, list[int]]:
    """Return the operands of each chain but its head, by head."""
    starts = graph.dependents.starts
    lines: dict[int, list[int]] = {}
    for i, own in enumerate(graph.inputs):
        if len(own) != 1 or roles[i] == ALONE:
            continue
        j = own[0]
        if roles[j] or starts[j + 1] - starts[j] != 1 or kinds[j] != kinds[i]:
            continue
        line = lines.get(j) or []
        if len(line) < _MOST_OPERANDS:
            lines.pop(j, None)
            line.append(j)
            lines[i] = line
    return lines


@dataclass(slots=True)
class _Group:
    reads: dict[int, int]  #: How many members read each operand outside of the group.
    seconds: float
    peak: float  #: Most bytes held when run alone, without its inputs.
    members: list[int] = field(default_factory=list)  #: The operands except the head.
    batches: dict[str, int] = field(default_factory=dict)  #: Number of members in each batch.
    line: bool = True  #: Whether it is a single line of operands.
    little: bool = False  #: Whether it adds little to any group (`_Grouping._brings_little`).


class _Grouping:
    def __init__(
        self,
        graph: OperandGraph,
        roles: Sequence[int],
        kinds: Sequence[int],
        limits: GroupBounds,
    ) -> None:
        self.graph = graph
        self.roles, self.kinds, self.limits = roles, kinds, limits
        self.nbytes = graph.nbytes
        self.inputs = list(graph.inputs)
        starts = graph.dependents.starts
        self.readers = [b - a for a, b in itertools.pairwise(starts)]
        #: An operand with more dependents is a hub, as in `core.roles`.
        self.shared = max(16.0, math.sqrt(len(graph)) / 2)
        self.groups: dict[int, _Group] = {}
        #: Earliest finish of each head with the groups formed so far.
        self.finish = [0.0] * len(graph)
        self.seconds = durations(graph, limits.made)
        #: Most operands of each batch in a group.
        sizes = Counter(name for name in limits.batches if name is not None)
        self.shares = {name: max(1, n // limits.groups) for name, n in sizes.items()}

    def run(self) -> dict[int, _Group]:
        """Form the groups, and return them by head."""
        roles, finish, seconds = self.roles, self.finish, self.seconds
        before = seconds.copy()
        slack = sum(seconds) / self.limits.groups
        # A group joins inputs that several members read only after one with a single reader.
        drawable = [
            times == 1 and not role for times, role in zip(self.readers, roles, strict=True)
        ]
        for i, own in enumerate(self.inputs):
            if not own:
                finish[i] = seconds[i]
                continue
            begin = first = 0.0
            grows = False
            for j in own:
                if before[j] > first:
                    first = before[j]
                if finish[j] > begin:
                    begin = finish[j]
                if drawable[j]:
                    grows = True
            before[i] += first
            if grows and roles[i] != ALONE:
                group = self._group(i)
                while self._grow(i, group, before[i] + slack):
                    pass
                finish[i] = self._start(group.reads) + group.seconds
            else:
                finish[i] = begin + seconds[i]
        return self.groups

    def _group(self, i: int) -> _Group:
        """Return the group of a head; most operands never need one."""
        group = self.groups.get(i)
        if group is None:
            reads = dict.fromkeys(self.inputs[i], 1)
            group = self.groups[i] = _Group(reads, self.seconds[i], self.nbytes[i])
            if self.shares and (name := self.limits.batches[i]) is not None:
                group.batches[name] = 1
        return group

    def _start(self, reads: dict[int, int]) -> float:
        finish = self.finish
        return max([finish[j] for j in reads], default=0.0)

    def _grow(self, head: int, group: _Group, latest: float) -> bool:
        """Join inputs to a group; return whether there may be more to join."""
        roles, readers, kinds, kind = self.roles, self.readers, self.kinds, self.kinds[head]
        reads = group.reads
        found = [
            j
            for j, times in reads.items()
            if times == readers[j] and not roles[j] and kinds[j] == kind
        ]
        if not found:
            return False
        if len(reads) == 1:
            other = self._group(found[0])
            # A group that has joined other inputs may run anywhere: it joins no piece of a hub.
            if group.line or not self._hubs(other.reads, self.nbytes[found[0]]):
                if len(group.members) + len(other.members) >= _MOST_OPERANDS:
                    return False
                group.line = group.line and other.line
                self._draw(group, found)
                return True
        found = [j for j in found if self._brings_little(j, reads)]
        if not found:
            return False
        for j in found:
            self._group(j)
        if hubs := self._hubs(reads, max([self.nbytes[j] for j in found])):
            found = [j for j in found if all(k in self.groups[j].reads for k in hubs)]
        found.sort(key=lambda j: self.groups[j].seconds)
        grown = False
        for alike in self._alike(found):
            if self._fits(group, alike, latest):
                self._draw(group, alike)
                group.line = False
                grown = True
        return grown

    def _brings_little(self, j: int, reads: dict[int, int]) -> bool:
        """Whether an input reads no more bytes outside of the group's inputs than its own size.

        Small hubs are ignored, as every worker gets them. Other hubs are ignored if other inputs
        are read too: otherwise the input is a piece cut off a hub, which stays where the hub is.
        A hub of unknown size, such as a partition of a frame, counts as large.
        """
        group = self.groups.get(j)
        own = self.inputs[j] if group is None else group.reads
        if not own or (group is not None and group.little):
            return True
        nbytes, readers, most_readers = self.nbytes, self.readers, self.shared
        small, known = self.limits.small, self.graph.known
        most = max(nbytes[j], CRUMB)
        new = shared = new_to_any = shared_by_any = 0.0
        for k in own:
            size = nbytes[k]
            if readers[k] <= most_readers:
                new_to_any += size
                if k not in reads:
                    new += size
            elif (large := size if known[k] else math.inf) > small:
                shared_by_any += large
                if k not in reads:
                    shared += large
        if group is not None:
            group.little = new_to_any <= most and shared_by_any <= most
        return (new or shared) <= most

    def _hubs(self, reads: dict[int, int], drawn: float) -> list[int]:
        """Return the hubs in `reads` that are much larger than `drawn`, or of unknown size."""
        nbytes, readers, known = self.nbytes, self.readers, self.graph.known
        most = _KAPPA * max(drawn, CRUMB)
        return [k for k in reads if readers[k] > self.shared and (not known[k] or nbytes[k] > most)]

    def _alike(self, found: list[int]) -> list[list[int]]:
        """Split sorted inputs: joining only some of similar duration leaves threads waiting."""
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
        """Return the peak of a group that runs `found` first, those that shrink most leading."""
        nbytes, groups = self.nbytes, self.groups
        live = peak = 0.0
        if len(found) > 1:
            found = sorted(found, key=lambda j: nbytes[j] - groups[j].peak)
        for j in found:
            peak = max(peak, live + groups[j].peak)
            live += nbytes[j]
        return max(peak, live + group.peak)

    def _draw(self, group: _Group, found: list[int]) -> None:
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
