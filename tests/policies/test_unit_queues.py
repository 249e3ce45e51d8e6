from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dask_marsched.policies.planning.host_shares import Share
from dask_marsched.policies.unit_queues import UnitQueues
from dask_marsched.policies.withholding import Offer


def nowhere(operand: Any, worker: Any) -> tuple[float, float]:
    return 0.0, 0.0


def take(queues: UnitQueues, worker: str, locality: Any = nowhere) -> Offer | None:
    offer = queues.offer(worker, locality)
    if offer is not None:
        queues.accept(offer, worker)
    return offer


def fill(queues: UnitQueues, units: list[str], worker: str | None = None) -> None:
    """Plan and withhold units of single-letter operands, in the order given."""
    order = {operand: (0.0, 0.0, float(i)) for i, operand in enumerate("".join(units))}
    for unit in units:
        queues.plan(unit, order[unit[0]], worker)
    for operand, priority in order.items():
        queues.enqueue(operand, priority)


def taken(queues: UnitQueues, *turns: str) -> str:
    offers = [take(queues, worker) for worker in turns]
    return "".join(offer.operand if offer else "-" for offer in offers)


def test_a_worker_finishes_its_unit_before_it_opens_another() -> None:
    queues = UnitQueues()
    fill(queues, ["ab", "cd", "ef"])
    assert taken(queues, "w1", "w2", "w1", "w2", "w1", "w1") == "acbdef"
    assert len(queues) == 0


def test_a_worker_that_runs_dry_takes_the_less_urgent_half_of_the_fullest() -> None:
    queues = UnitQueues()
    fill(queues, ["abcde"])
    assert taken(queues, "w1") == "a"
    given = [take(queues, "w2"), take(queues, "w2")]
    assert [offer.how for offer in given if offer] == ["taken", "own"]
    assert taken(queues, "w1", "w1", "w1") == "bc-"


def test_workers_with_opened_units_are_sorted_by_urgency() -> None:
    queues = UnitQueues()
    fill(queues, ["ab", "cde"])
    assert queues.begun() == []
    assert taken(queues, "w1", "w2") == "ac"
    assert queues.begun() == ["w1", "w2"]
    assert taken(queues, "w1") == "b"
    assert queues.begun() == ["w2"]
    queues.release("w2")
    assert queues.begun() == []


def test_planned_for_a_worker() -> None:
    queues = UnitQueues()
    queues.plan("ab", (0, 0, 0), "w1")
    queues.plan("cd", (0, 0, 2), "w2")
    for i, operand in enumerate("abcd"):
        queues.enqueue(operand, (0, 0, i))
    assert taken(queues, "w2", "w2", "w1", "w2") == "cdab"


def test_user_priority_and_older_graphs_go_first() -> None:
    queues = UnitQueues()
    queues.plan("ab", (0, 1, 0))
    queues.plan("c", (-1, 2, 0))
    queues.plan("d", (0, 0, 0))
    queues.enqueue("a", (0, 1, 0))
    queues.enqueue("b", (0, 1, 1))
    assert taken(queues, "w") == "a"
    queues.enqueue("d", (0, 0, 0))
    queues.enqueue("c", (-1, 2, 0))
    assert taken(queues, "w", "w", "w") == "cdb"


def test_urgent_operands_are_taken_before_less_urgent_units_are_opened() -> None:
    queues = UnitQueues()
    queues.plan("abcd", (0, 0, 0))
    queues.plan("x", (0, 1, 0))
    for i, operand in enumerate("abcd"):
        queues.enqueue(operand, (0, 0, i))
    queues.enqueue("x", (0, 1, 0))
    assert taken(queues, "w1", "w2", "w2", "w1", "w2", "w1") == "acdbx-"


def test_units_go_where_their_inputs_are() -> None:
    queues = UnitQueues()
    for i, (operand, where) in enumerate(zip("abcd", ["w1", "w1", "w2", "w2"], strict=True)):
        queues.enqueue(operand, (0, 0, i), where)
    home = dict(zip("abcd", ["w1", "w1", "w2", "w2"], strict=True))

    def locality(operand: str, worker: str) -> tuple[float, float]:
        return (9.0 if home[operand] == worker else 0.0), 9.0

    offers = [take(queues, worker, locality) for worker in ["w2", "w1", "w2", "w1"]]
    assert [offer and offer.operand for offer in offers] == list("cadb")


def test_a_worker_that_holds_no_unit_s_inputs_fetches_least() -> None:
    queues = UnitQueues()
    queues.window = 3
    for i, operand in enumerate("abcd"):
        queues.enqueue(operand, (0, 0, i), "w1")
    held = {"a": 0.0, "b": 1e6, "c": 2e6, "d": 9e6}

    def locality(operand: str, worker: str) -> tuple[float, float]:
        return held[operand], 1e7

    offer = take(queues, "w2", locality)
    assert offer is not None
    assert offer.operand == "c"


def test_what_belongs_on_the_same_worker_is_counted() -> None:
    queues = UnitQueues()
    fill(queues, ["abc"])
    for place, operand in enumerate("xy"):
        queues.enqueue(operand, (0.0, 0.0, 10.0 + place), "w2")
    assert (queues.bound_alike("a"), queues.bound_alike("x")) == (5, 2)
    assert taken(queues, "w1") == "a"
    assert (queues.bound_alike("b"), queues.bound_alike("x")) == (2, 2)
    queues.withdraw("x")
    assert queues.bound_alike("y") == 1


def test_crumbs_elsewhere_do_not_make_an_operand_wait() -> None:
    """As the array object of a Zarr store, which readers with another, large input read as well."""
    queues = UnitQueues()
    queues.enqueue("reader", (0, 0, 1), "w1")
    queues.enqueue("source", (0, 0, 2), "w2")
    sizes = {"reader": (1e7, 1e7 + 48), "source": (48.0, 48.0)}
    offer = take(queues, "w1", lambda operand, worker: sizes[operand])
    assert offer is not None
    assert offer.operand == "reader"


def test_units_of_a_lost_worker_are_reopened_first() -> None:
    queues = UnitQueues()
    fill(queues, ["abc", "de", "f"])
    assert taken(queues, "w1", "w2") == "ad"
    queues.release("w1")
    queues.enqueue("a", (0.0, 0.0, 0.0))  # it was running there
    assert taken(queues, "w3", "w2", "w3", "w3") == "aebc"


def test_an_operand_of_no_unit_is_one_of_its_own() -> None:
    queues = UnitQueues()
    queues.enqueue("x", (0, 0, 5))
    queues.enqueue("y", (0, 0, 4))
    assert taken(queues, "w", "w", "w") == "yx-"


def test_withdrawn_and_forgotten_operands_are_not_offered() -> None:
    queues = UnitQueues()
    fill(queues, ["ab", "c"])
    assert taken(queues, "w") == "a"
    for _ in range(2):
        queues.withdraw("b")
    queues.forget("c")
    assert not queues.planned("c")
    assert taken(queues, "w") == "-"


def test_an_offer_that_is_not_accepted_changes_nothing() -> None:
    queues = UnitQueues()
    fill(queues, ["ab", "c"])
    first = [queues.offer("w1", nowhere), queues.offer("w1", nowhere), queues.offer("w2", nowhere)]
    assert [offer and offer.operand for offer in first] == ["a", "a", "a"]
    assert len(queues) == 3


def test_planning_again_moves_operands_that_are_withheld() -> None:
    queues = UnitQueues()
    fill(queues, ["a", "b", "c"])
    queues.plan("bc", (0, 0, 1), None)
    # w1 has opened "a", w2 opens the new unit: w1 runs dry and takes over half of it.
    assert taken(queues, "w1", "w2", "w2", "w1") == "abc-"


OPERANDS = st.integers(0, 11)
WORKERS = st.sampled_from(["w0", "w1", "w2"])


class Withholding(RuleBasedStateMachine):
    """Whatever happens, exactly what is withheld is offered, and all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.queues = UnitQueues()
        self.queues.window = 2
        self.withheld: dict[int, tuple[int, int, int]] = {}
        self.shares = Share(), Share()

    @rule(
        members=st.sets(OPERANDS, min_size=1),
        worker=st.none() | WORKERS,
        share=st.none() | st.integers(0, 1),
    )
    def plan(self, members: set[int], worker: str | None, share: int | None) -> None:
        self.queues.plan(
            sorted(members),
            (0, 0, min(members)),
            worker,
            None if share is None else self.shares[share],
        )
        assert all(self.queues.planned(operand) for operand in members)

    @rule(hosts=st.dictionaries(WORKERS, st.sampled_from("ab")))
    def locate(self, hosts: dict[str, str]) -> None:
        self.queues.locate(hosts)

    @rule(operand=OPERANDS, user=st.integers(0, 1), home=st.none() | WORKERS)
    def enqueue(self, operand: int, user: int, home: str | None) -> None:
        if operand not in self.withheld:
            self.withheld[operand] = user, 0, operand
            self.queues.enqueue(operand, self.withheld[operand], home)

    @rule(operand=OPERANDS)
    def withdraw(self, operand: int) -> None:
        self.queues.withdraw(operand)
        self.withheld.pop(operand, None)

    @rule(operand=OPERANDS)
    def forget(self, operand: int) -> None:
        self.queues.forget(operand)
        self.withheld.pop(operand, None)
        assert not self.queues.planned(operand)

    @rule(worker=WORKERS)
    def release(self, worker: str) -> None:
        self.queues.release(worker)
        assert worker not in map(self.queues.owner, range(12))

    @rule(worker=WORKERS)
    def take(self, worker: str) -> None:
        offer = take(self.queues, worker)
        assert (offer is None) == (not self.withheld), "a worker with a slot must not go empty"
        if offer is not None:
            assert offer.operand in self.withheld
            assert self.queues.owner(offer.operand) is not None
            del self.withheld[offer.operand]

    @precondition(lambda self: self.withheld)
    @rule(worker=WORKERS)
    def drain(self, worker: str) -> None:
        while self.withheld:
            self.take(worker)

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.queues) == len(self.withheld)

    @rule()  # and not an invariant: most changes are seen several at a time
    def ranks_those_that_have_begun(self) -> None:
        heads: dict[str, tuple[int, int, int]] = {}
        for operand, priority in self.withheld.items():
            worker = self.queues.owner(operand)
            if worker is not None:
                heads[worker] = min(priority, heads.get(worker, priority))
        assert self.queues.begun() == sorted(heads, key=heads.__getitem__)


TestWithholding = Withholding.TestCase
TestWithholding.settings = settings(stateful_step_count=40)


def test_priorities_are_compared_only_where_needed() -> None:
    """Operands of equal priority need not be comparable themselves."""
    queues = UnitQueues()
    a, b = object(), object()
    queues.plan([a, b], (0, 0, 0))
    queues.enqueue(a, (0, 0, 0))
    queues.enqueue(b, (0, 0, 0))
    given = [take(queues, "w"), take(queues, "w")]
    assert {id(offer.operand) for offer in given if offer} == {id(a), id(b)}
