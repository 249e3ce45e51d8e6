from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.assignment import BoundedUnits
from dask_marsched.policies.planning.host_shares import Share, cut_into_shares, several_to_a_host
from dask_marsched.policies.unit_queues import UnitQueues
from tests.graphs import graph

HOSTS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}


def workers(*threads_by_host: tuple[int, ...]) -> list[WorkerSlot]:
    """Workers of several hosts, by their threads; they join in turn, host by host."""
    return [
        WorkerSlot(f"tcp://{host}:{n}", threads[n], host=str(host))
        for n in range(max(map(len, threads_by_host)))
        for host, threads in enumerate(threads_by_host)
        if n < len(threads)
    ]


def queues_of(*shares: int | None, hosts: dict[str, str] | None = None) -> UnitQueues:
    """Withhold one operand a unit, 0, 1 ..., of the shares given."""
    queues = UnitQueues()
    queues.locate(HOSTS if hosts is None else hosts)
    made: dict[int, Share] = defaultdict(Share)
    for i, share in enumerate(shares):
        queues.plan([i], (0.0, 0.0, i), None, None if share is None else made[share])
    for i in range(len(shares)):
        queues.enqueue(i, (0.0, 0.0, i))
    return queues


def taken(queues: UnitQueues, *turns: str) -> list[Any]:
    found = []
    for worker in turns:
        offer = queues.offer(worker, lambda operand, worker: (0.0, 0.0))
        assert offer == queues.offer(worker, lambda operand, worker: (0.0, 0.0))
        if offer is not None:
            queues.accept(offer, worker)
        found.append(offer and offer.operand)
    return found


def test_the_workers_of_a_host_open_the_units_of_its_share_in_order() -> None:
    queues = queues_of(0, 0, 0, 0, 1, 1, 1, 1)
    assert taken(queues, "a1", "b1", "a2", "b2", "b1", "a1") == [0, 4, 1, 5, 6, 2]


def test_a_host_without_units_takes_a_share_without_host() -> None:
    queues = queues_of(0, 0, 1, 1, 2, 2)
    assert taken(queues, "a1", "b1", "a2", "a1", "b2", "a2") == [0, 2, 1, 4, 3, 5]


def test_at_last_a_host_takes_from_the_end_of_the_fullest_share() -> None:
    queues = queues_of(0, 1, 1, 1, 1)
    assert taken(queues, "a1", "b1", "a2", "a1", "b2", "b1", "a1") == [0, 1, 4, 3, 2, None, None]


def test_the_shares_of_a_lost_host_are_taken_up_from_their_beginning() -> None:
    queues = queues_of(0, 0, 0, 1)
    assert taken(queues, "a1", "b1") == [0, 3]
    queues.release("a1")
    queues.release("a2")
    queues.locate({"b1": "b", "b2": "b", "c1": "c"})
    queues.enqueue(0, (0.0, 0.0, 0))
    assert taken(queues, "c1", "b1", "c1") == [0, 2, 1]


def test_a_more_urgent_graph_goes_first_on_every_host() -> None:
    queues = queues_of(0, 0, 1, 1)
    assert taken(queues, "a1", "b1") == [0, 2]
    queues.plan(["x"], (-1.0, 1.0, 0.0), None, Share())
    queues.enqueue("x", (-1.0, 1.0, 0.0))
    assert taken(queues, "b2", "b2", "a2") == ["x", 3, 1]


def test_units_of_no_share_and_workers_of_unknown_hosts_go_by_priority() -> None:
    assert taken(queues_of(None, None, None), "b1", "a1", "b2") == [0, 1, 2]
    assert taken(queues_of(1, 0, 1, hosts={}), "b1", "a1", "b2") == [0, 1, 2]


def test_shares_are_in_proportion_to_threads_and_cut_between_units() -> None:
    units = [Unit((i,)) for i in range(12)]
    shares = [u.share for u in cut_into_shares(units, workers((2, 1), (1,), (2,)))]
    assert shares == [0] * 6 + [1] * 2 + [2] * 4
    large = cut_into_shares([Unit(tuple(range(9))), Unit((9,))], workers((1, 1), (1, 1)))
    assert [u.share for u in large] == [0, 1]


@given(
    st.lists(st.integers(1, 9), max_size=40),
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1),
)
def test_shares_are_runs_of_units_that_fit(sizes: list[int], hosts: list[tuple[int, ...]]) -> None:
    units, start = [], 0
    for size in sizes:
        units.append(Unit(tuple(range(start, start + size))))
        start += size
    cut = cut_into_shares(units, workers(*hosts))
    assert [u.operands for u in cut] == [u.operands for u in units]
    shares = [u.share for u in cut if u.share is not None]
    assert len(shares) == len(units)
    assert shares == sorted(shares)
    count: Counter[int] = Counter()
    for unit in cut:
        assert unit.share is not None
        count[unit.share] += len(unit.operands)
    threads = [sum(t) for t in hosts]
    for share, n in count.items():
        # at each end it may reach over by half a unit
        assert n <= start * threads[share] / sum(threads) + max(sizes)


def test_several_workers_to_several_hosts() -> None:
    assert several_to_a_host(workers((1, 1), (1,)))
    assert not several_to_a_host(workers((1,), (1,)))
    assert not several_to_a_host(workers((1, 1, 1)))
    assert not several_to_a_host([])


def test_units_are_cut_into_shares_only_where_several_workers_share_a_host() -> None:
    pairs = {f"s{i}": [f"x{i}", f"y{i}"] for i in range(8)}
    g = graph({f"{c}{i}": [] for i in range(8) for c in "xy"} | pairs)
    for by_host, expected in (((1, 1), (1, 1)), {0, 1}), (((1,), (1,)), {None}):
        units = BoundedUnits().assign(g, workers(*by_host))
        assert {u.share for u in units} == expected
        again = BoundedUnits().assign(g, workers(*by_host), {0, 1, 2})
        assert sorted(i for u in again for i in u.operands) == [
            i for i in (0, 1, 2) if not g.inputs[i]
        ]
        assert {u.share for u in again} <= expected
