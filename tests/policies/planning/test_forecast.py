from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit
from dask_marsched.policies.dispatch_pace import SCHEDULER_TIME
from dask_marsched.policies.planning.forecast import LINK, Forecaster, _ForecastRun
from tests.graphs import forecast, graph, operand_graphs, pairwise, tree


def alone(g: OperandGraph) -> list[Unit]:
    return [Unit((i,)) for i in g if not g.inputs[i]]


@st.composite
def plans(draw: st.DrawFn, g: OperandGraph) -> list[Unit]:
    """Draw disjoint units of operands; some operands may be in none."""
    number = {i: draw(st.integers(-1, 4)) for i in g if not g.inputs[i] or draw(st.booleans())}
    units = [
        Unit(tuple(i for i, n in number.items() if n == unit), tile=draw(st.booleans()))
        for unit in range(5)
    ]
    return sorted((u for u in units if u.operands), key=lambda u: u.operands)


class WatchedRun(_ForecastRun):
    """A forecast that takes note of what ends where, and of what is held then."""

    def _finish(self, i: int, w: int) -> None:
        assert not self.missing[i], "it ran before its inputs"
        super()._finish(i, w)
        self.ended = [*getattr(self, "ended", []), (i, w)]
        assert self.live == pytest.approx(self.held(), abs=1e-3)

    def held(self) -> float:
        return sum(
            size * len(where) for size, where in zip(self.graph.nbytes, self.holders, strict=False)
        )


threads = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(
    data=st.data(),
    g=operand_graphs(),
    threads=threads,
    like_stock=st.booleans(),
    scheduler_time=st.sampled_from([0.0, SCHEDULER_TIME, 0.1]),
)
def test_every_operand_runs_once_and_memory_adds_up(
    data: st.DataObject,
    g: OperandGraph,
    threads: list[int],
    like_stock: bool,
    scheduler_time: float,
) -> None:
    units = data.draw(plans(g))
    run = WatchedRun(Forecaster(g, threads, scheduler_time), units, LINK, like_stock)
    result = run.run()
    assert sorted(i for i, _ in run.ended) == list(g)
    assert {w for _, w in run.ended} <= set(range(len(threads)))
    # In the end all threads are free again, and there is what nothing reads.
    assert run.free == threads
    assert not len(run.queues)
    kept = [i for i in g if not g.dependents[i]]
    assert [i for i in g if run.holders[i]] == kept
    together = max(g.nbytes[i] + sum(g.nbytes[j] for j in g.inputs[i]) for i in g)
    assert result.peak >= together - 1e-3
    assert result.peak >= sum(g.nbytes[i] for i in kept) - 1e-3
    assert result.moved >= 0
    assert result.makespan >= len(g) * scheduler_time * (1 - 1e-9)
    assert result == forecast(
        g, units, threads, like_stock=like_stock, scheduler_time=scheduler_time
    )


@given(data=st.data(), g=operand_graphs(), nthreads=st.integers(1, 4), like_stock=st.booleans())
def test_a_single_worker_moves_nothing_and_holds_no_copies(
    data: st.DataObject, g: OperandGraph, nthreads: int, like_stock: bool
) -> None:
    result = forecast(g, data.draw(plans(g)), [nthreads], like_stock=like_stock)
    assert result.moved == 0
    assert result.peak <= sum(g.nbytes) + 1e-3


@given(g=operand_graphs(), threads=threads)
def test_no_run_is_shorter_than_its_longest_path_or_its_share_of_the_work(
    g: OperandGraph, threads: list[int]
) -> None:
    run = _ForecastRun(Forecaster(g, threads), alone(g), LINK, False)
    path = list[float]()
    for i in g:
        path.append(run.seconds[i] + max((path[j] for j in g.inputs[i]), default=0.0))
    shortest = max(max(path), sum(run.seconds) / sum(threads))
    assert run.run().makespan >= shortest * (1 - 1e-9)


def test_inputs_on_the_same_worker_do_not_move() -> None:
    g = pairwise(8)
    together = [Unit((3 * i, 3 * i + 1)) for i in range(8)]
    assert forecast(g, together, [1, 1]).moved == 0
    # Split between the workers, of a pair that meets one has to move.
    assert forecast(g, alone(g), [1, 1]).moved > 0


def test_a_copy_is_held_while_it_is_read_elsewhere() -> None:
    # Two readers of x: the second one also reads y, which is larger and lies on the other worker.
    g = graph(
        {"x": [], "y": [], "r": ["x"], "s": ["x", "y"]}, {"x": 10.0, "y": 100.0, "r": 1.0, "s": 1.0}
    )
    result = forecast(g, alone(g), [1, 1])
    assert result.moved == 10
    assert result.peak >= 120  # x twice, y once


def test_the_last_reader_gets_the_only_copy_except_in_stock_dask() -> None:
    g = graph({"x": [], "y": [], "s": ["x", "y"]}, {"x": 10.0, "y": 100.0, "s": 1.0})
    ours = forecast(g, alone(g), [1, 1])
    stock = forecast(g, alone(g), [1, 1], like_stock=True)
    assert ours.moved == stock.moved == 10
    assert (ours.peak, stock.peak) == (111, 121)


def test_stock_holds_more_initial_results() -> None:
    # A tree whose partial results are small: whoever has the next chunk in wait holds it longer.
    g = tree(leaves=64, fan=4, partial=1.0)
    assert forecast(g, alone(g), [2, 2]).peak <= forecast(g, alone(g), [2, 2], like_stock=True).peak


def test_inputs_in_memory_are_moved_from_their_home() -> None:
    g = graph({"x": [], "y": []}, home={"x": 0, "y": 0}, home_bytes=50.0)
    assert forecast(g, alone(g), [2]).moved == 0
    # The second worker has nothing to do: it takes one of them over.
    assert forecast(g, alone(g), [1, 1]).moved == 50
    # The home is not among the workers of the forecast: all is fetched.
    far = dataclasses.replace(g, home=[7, 7])
    assert forecast(far, alone(far), [1, 1]).moved == 100


def test_where_the_scheduler_is_slow_results_wait_for_it() -> None:
    # What is read at once is gone at once, unless nobody has told of its reader.
    chains = {f"x{i}": [] for i in range(40)} | {f"r{i}": [f"x{i}"] for i in range(40)}
    g = graph(chains, {key: 10.0 if key[0] == "x" else 0.0 for key in chains})
    fast = forecast(g, alone(g), [1] * 8)
    slow = forecast(g, alone(g), [1] * 8, scheduler_time=0.01)
    assert fast.moved == slow.moved == 0
    assert slow.makespan >= 0.8 > fast.makespan


@given(data=st.data(), g=operand_graphs(), threads=threads, like_stock=st.booleans())
def test_where_each_worker_has_a_host_all_that_moves_moves_between_hosts(
    data: st.DataObject, g: OperandGraph, threads: list[int], like_stock: bool
) -> None:
    units = data.draw(plans(g))
    known = forecast(g, units, threads, like_stock=like_stock, hosts=range(len(threads)))
    assert known.between_hosts == pytest.approx(known.moved)
    other = forecast(g, units, threads, like_stock=like_stock)
    assert dataclasses.replace(known, between_hosts=0.0) == other
    alike = forecast(g, units, threads, like_stock=like_stock, hosts=["h"] * len(threads))
    assert alike.between_hosts == 0


def test_an_operand_runs_on_the_host_with_most_of_its_inputs() -> None:
    # Host a has two of the inputs, on two workers; host b has the largest.
    g = graph({"x": [], "y": [], "z": [], "s": ["x", "y", "z"]}, {"x": 60.0, "y": 60.0, "z": 100.0})
    units = [Unit((i,), share=i // 2) for i in range(3)]
    result = forecast(g, units, [1, 1, 1], hosts=["a", "a", "b"])
    assert (result.moved, result.between_hosts) == (160, 100)
    assert forecast(g, units, [1, 1, 1]).moved == 120


def test_the_workers_of_a_host_open_the_units_of_its_share() -> None:
    # What meets follows each other, but on four workers that take turns.
    n = 16
    inputs: dict[str, list[str]] = {f"x{i}": [] for i in range(2 * n)}
    inputs |= {f"s{i}": [f"x{2 * i}", f"x{2 * i + 1}"] for i in range(n)}
    g = graph(inputs, dict.fromkeys(inputs, 8000000.0))
    units = [Unit((i,), share=i // n) for i in range(2 * n)]
    hosts = ["a", "a", "b", "b"]
    shared = forecast(g, units, [1] * 4, hosts=hosts)
    alone_ = forecast(g, alone(g), [1] * 4, hosts=hosts)
    assert shared.between_hosts == 0 < alone_.between_hosts
