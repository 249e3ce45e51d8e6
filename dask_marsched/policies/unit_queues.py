"""Queues the units of withheld operands, which workers with a free slot open: `UnitQueues`."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from sortedcontainers import SortedDict, SortedKeyList, SortedList

from dask_marsched.policies.planning.host_shares import HostShares, Share, units_by_priority
from dask_marsched.policies.withholding import BINDING_BYTES, Locality, Offer, Priority


@dataclass(slots=True, eq=False)
class _Tenure:
    """The time in which a worker may own units: until it leaves, pauses or retires."""

    worker: Any
    over: bool = False


@dataclass(slots=True, eq=False)
class _Unit:
    """Operands that belong on one worker.

    While some of them are withheld (`ready`), the unit is in `UnitQueues._running` if it has an
    owner, else in `UnitQueues._unopened`. `number` breaks ties of priority.
    """

    first: Priority
    number: int
    tenure: _Tenure | None = None
    share: Share | None = None
    home: Any | None = None
    ready: dict[Any, Priority] = field(default_factory=dict)

    @property
    def owner(self) -> Any | None:
        return None if self.tenure is None or self.tenure.over else self.tenure.worker

    def head(self) -> tuple[Priority, Any]:
        operand = min(self.ready, key=self.ready.__getitem__)
        return self.ready[operand], operand

    def less_urgent_half(self, urgency: Priority) -> list[Any]:
        alike = [o for o, priority in self.ready.items() if priority[:2] == urgency]
        ranked = sorted(alike, key=self.ready.__getitem__)
        return ranked[len(ranked) // 2 :]


class UnitQueues:
    """Queues of units, opened in global order of priority by any worker with a free slot (default).

    A worker with a free slot runs the next ready operand of the units it has opened. Otherwise it
    opens a unit: one whose inputs it holds, else the one of the first `window` unopened units with
    the fewest bytes to fetch. Otherwise it takes the less urgent half of the largest unit of
    another worker. A higher user priority or an older graph always goes first.
    """

    name: ClassVar[str] = "units"
    window = 64

    def __init__(self) -> None:
        self._unit_of: dict[Any, _Unit] = {}
        self._withheld: dict[Any, _Unit] = {}
        self._numbered = 0
        self._unopened = units_by_priority()
        self._at_home: dict[Any, SortedKeyList] = {}
        # Heaps of ready operands; entries no longer withheld, or of another owner, are skipped.
        self._opened: dict[Any, list[tuple[Priority, int, Any]]] = {}
        self._running: dict[_Unit, None] = {}
        self._tenures: dict[Any, _Tenure] = {}
        # The heads of these heaps, sorted; outdated for the workers in `_moved`.
        self._by_head = SortedList()
        self._head_of: dict[Any, tuple[Priority, int, Any]] = {}
        self._moved: set[Any] = set()
        # Withheld operands by user priority and graph; there may be thousands of small graphs.
        self._urgencies = SortedDict()
        self._shares = HostShares()

    def plan(
        self,
        operands: Iterable[Any],
        first: Priority,
        worker: Any | None = None,
        share: Share | None = None,
    ) -> None:
        """Make a unit (`WithholdingPolicy.plan`); operands already withheld move into it."""
        tenure = None if worker is None else self._tenure(worker)
        unit = _Unit(first, self._number(), tenure, share)
        if not self._withheld:  # as when a graph arrives: there is nothing to move
            self._unit_of.update(dict.fromkeys(operands, unit))
            return
        for operand in operands:
            before = self._unit_of.get(operand)
            priority = self._drop(operand)
            self._unit_of[operand] = unit
            if priority is not None:
                self._add(unit, operand, priority, before.home if before else None)

    def planned(self, operand: Any) -> bool:
        """Whether an operand belongs to a unit."""
        return operand in self._unit_of

    def owner(self, operand: Any) -> Any | None:
        """Return the worker of an operand's unit (`WithholdingPolicy.owner`)."""
        unit = self._unit_of.get(operand)
        return None if unit is None else unit.owner

    def forget(self, operand: Any) -> None:
        """Drop an operand that will never run again."""
        self.withdraw(operand)
        self._unit_of.pop(operand, None)

    def enqueue(self, operand: Any, priority: Priority, home: Any | None = None) -> None:
        """Withhold a ready operand in its unit, or in one of its own if it has none."""
        unit = self._unit_of.get(operand)
        if unit is None:
            unit = self._unit_of[operand] = _Unit(priority, self._number())
        self._add(unit, operand, priority, home)

    def withdraw(self, operand: Any) -> None:
        """Remove an operand, if it is withheld."""
        self._drop(operand)

    def offer(self, worker: Any, locality: Locality) -> Offer | None:
        """Return what a worker with a free slot should run next. Changes nothing."""
        if not self._withheld:
            return None
        urgency: Priority = self._urgencies.keys()[0]
        own = self._own_head(worker)
        if own is not None and own[0][:2] == urgency:
            return Offer(own[1], "own")
        first = self._unopened[0] if self._unopened else None
        if first is None or first.first[:2] > urgency:
            victim = self._fullest(urgency)
            if victim is not None:
                return Offer(victim.less_urgent_half(urgency)[0], "taken", victim)
        if first is None:
            return None
        unit = self._choose_unopened(worker, first, locality)
        return Offer(unit.head()[1], "opened", unit)

    def begun(self) -> list[Any]:
        """Return workers with withheld operands in opened units (`WithholdingPolicy.begun`)."""
        for worker in self._moved:
            self._note_head(worker)
        self._moved.clear()
        return [worker for _, _, worker in self._by_head]

    def bound_alike(self, operand: Any) -> int:
        """Return how many operands belong on the same worker (`WithholdingPolicy.bound_alike`)."""
        own = self._withheld[operand]
        worker = own.home if own.owner is None else own.owner
        if worker is None:
            return len(self)
        self._own_head(worker)  # drops entries that are outdated
        there = self._at_home.get(worker, ())
        # Each of further units has one operand or more.
        some = sum(len(unit.ready) for unit in itertools.islice(there, self.window))
        return len(self._opened.get(worker, ())) + some + max(0, len(there) - self.window)

    def accept(self, offer: Offer, worker: Any) -> None:
        """Carry out an offer: the operand is sent to the worker."""
        operand, unit = offer.operand, offer.source
        if offer.how == "opened":
            self._shares.opened(unit, worker)
            self._leave_unopened(unit)
            unit.tenure = self._tenure(worker)
            self._running[unit] = None
            for each, priority in unit.ready.items():
                self._push(worker, each, priority)
        elif offer.how == "taken":
            moved = unit.less_urgent_half(unit.ready[operand][:2])
            self.plan(moved, unit.ready[moved[0]], worker)
        self._drop(operand)

    def release(self, worker: Any) -> None:
        """Give up the units opened by a worker (`WithholdingPolicy.release`)."""
        self._opened.pop(worker, None)
        self._moved.discard(worker)
        self._note_head(worker)
        tenure = self._tenures.pop(worker, None)
        if tenure is None:
            return
        tenure.over = True
        for unit in [unit for unit in self._running if unit.tenure is tenure]:
            del self._running[unit]
            self._enter_unopened(unit)

    def locate(self, host_of: Mapping[Any, Any]) -> None:
        """Set the host of each worker (`WithholdingPolicy.locate`)."""
        self._shares.locate(host_of)

    def __len__(self) -> int:
        return len(self._withheld)

    def _enter_unopened(self, unit: _Unit) -> None:
        self._unopened.add(unit)
        self._shares.enter(unit)
        if unit.home is not None:
            self._at_home.setdefault(unit.home, units_by_priority()).add(unit)

    def _leave_unopened(self, unit: _Unit) -> None:
        self._unopened.remove(unit)
        self._shares.leave(unit)
        if unit.home is not None:
            there = self._at_home[unit.home]
            there.remove(unit)
            if not there:
                del self._at_home[unit.home]

    def _choose_unopened(self, worker: Any, first: _Unit, locality: Locality) -> _Unit:
        if not self._at_home:
            return cast("_Unit", self._shares.choose(worker, first))
        at_home = self._at_home.get(worker)
        home = at_home[0] if at_home else None
        if (
            home
            and home.first[:2] <= first.first[:2]
            and not self._to_fetch(home, worker, locality)
        ):
            return cast("_Unit", home)
        best, least = first, math.inf
        for unit in self._unopened.islice(0, self.window):
            if unit.first[:2] > first.first[:2]:
                break
            fetched = self._to_fetch(unit, worker, locality)
            if fetched < least:
                best, least = unit, fetched
            if not least:
                break
        return best

    @staticmethod
    def _to_fetch(unit: _Unit, worker: Any, locality: Locality) -> float:
        here, everywhere = locality(unit.head()[1], worker)
        return everywhere - here if everywhere - here >= BINDING_BYTES else 0

    def _add(self, unit: _Unit, operand: Any, priority: Priority, home: Any | None) -> None:
        self._withheld[operand] = unit
        was_empty = not unit.ready
        urgency = priority[:2]
        self._urgencies[urgency] = self._urgencies.get(urgency, 0) + 1
        unit.ready[operand] = priority
        if unit.owner is not None:
            self._push(unit.owner, operand, priority)
            self._running[unit] = None
        elif was_empty:
            unit.home = home
            self._enter_unopened(unit)

    def _drop(self, operand: Any) -> Priority | None:
        unit = self._withheld.pop(operand, None)
        if unit is None:
            return None
        if unit.owner is not None:
            self._moved.add(unit.owner)
        urgency = unit.ready[operand][:2]
        self._urgencies[urgency] -= 1
        if not self._urgencies[urgency]:
            del self._urgencies[urgency]
        if len(unit.ready) == 1:
            if unit.owner is None:
                self._leave_unopened(unit)
            else:
                del self._running[unit]
        if not self._withheld:
            # All entries are stale, and would keep their operands alive.
            self._opened.clear()
        return unit.ready.pop(operand)

    def _push(self, owner: Any, operand: Any, priority: Priority) -> None:
        heap = self._opened.setdefault(owner, [])
        heapq.heappush(heap, (priority, self._number(), operand))
        self._moved.add(owner)

    def _tenure(self, worker: Any) -> _Tenure:
        return self._tenures.setdefault(worker, _Tenure(worker))

    def _number(self) -> int:
        # itertools.count cannot be pickled from Python 3.14 on
        self._numbered += 1
        return self._numbered

    def _own_head(self, worker: Any) -> tuple[Priority, Any] | None:
        heap = self._opened.get(worker)
        while heap:
            priority, _, operand = heap[0]
            unit = self._withheld.get(operand)
            if unit is not None and unit.owner == worker:
                return priority, operand
            heapq.heappop(heap)
        return None

    def _note_head(self, worker: Any) -> None:
        if (before := self._head_of.pop(worker, None)) is not None:
            self._by_head.remove(before)
        if self._own_head(worker) is not None:
            priority, number, _ = self._opened[worker][0]
            self._head_of[worker] = head = priority, number, worker
            self._by_head.add(head)

    def _fullest(self, urgency: Priority) -> _Unit | None:
        """Return the opened unit with most ready operands, the more urgent one on a tie."""
        units: Iterable[_Unit] = self._running
        if len(self._urgencies) > 1:
            units = [unit for unit in units if unit.head()[0][:2] == urgency]
        return min(units, key=lambda u: (-len(u.ready), u.first, u.number), default=None)
