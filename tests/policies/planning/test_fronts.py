from __future__ import annotations

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.assignment import BoundedUnits
from dask_marsched.policies.planning.host_shares import Fronts, runs_to_a_host
from tests.graphs import graph, pairwise

WORKERS = [WorkerSlot(f"tcp://{n}", 1, host=str(n // 2)) for n in range(16)]


def grid(rows: int, columns: int, size: float = 8.0) -> OperandGraph:
    """Chunks, each needed with those below it and right of it, for results of no size."""
    inputs: dict[str, list[str]] = {}
    for r in range(rows):
        for c in range(columns):
            inputs[f"x{r}.{c}"] = []
            if r:
                left = [f"x{r}.{c - 1}"] if c else []
                inputs[f"y{r}.{c}"] = [f"x{r - 1}.{c}", *left, f"x{r}.{c}"]
    return graph(inputs, {name: size if name[0] == "x" else 0.0 for name in inputs})


def each_alone(g: OperandGraph) -> list[Unit]:
    return [Unit((i,)) for i in g if not g.inputs[i]]


def test_one_front_through_a_grid_holds_a_row_and_each_of_several_does() -> None:
    fronts = Fronts(grid(40, 10), each_alone(grid(40, 10)))
    row = 10 * 8.0
    alone = fronts.peak(1, 1)
    assert row <= alone <= 1.5 * row
    # Besides its front, each waits for the first row of the next one, but for the last.
    assert 4 * row <= fronts.peak(4, 4) <= 8.5 * row
    # Runs of two rows, four at a time: little more than a front.
    assert fronts.peak(20, 4) < fronts.peak(4, 4)


def test_results_joined_within_a_run_are_released_early() -> None:
    g = pairwise(64)
    units = [Unit((3 * i, 3 * i + 1)) for i in range(64)]
    small = g.with_nbytes([0.0 if g.inputs[i] else 8.0 for i in g], g.known)
    fronts = Fronts(small, units)
    assert fronts.peak(1, 1) == 16.0
    assert fronts.peak(4, 4) == 4 * 16.0


def test_results_without_readers_are_held_to_the_end() -> None:
    g = graph({f"x{i}": [] for i in range(10)})
    for runs in (1, 3, 10):
        assert Fronts(g, each_alone(g)).peak(runs, 5) == 80.0


def test_the_coarsest_runs_that_hold_hardly_more_than_stock_dask() -> None:
    g = grid(64, 10)
    units = each_alone(g)
    fronts = Fronts(g, units)
    found = []
    for stock in (100.0, 200.0, 320.0, 640.0):
        runs = runs_to_a_host(g, units, 4, stock)
        most = 1.25 * max(stock, fronts.peak(1, 1))
        fit = [m for m in (1, 2, 4, 8, 16) if fronts.peak(4 * m, 4) <= most]
        assert runs == (fit[0] if fit else 16)
        found.append(runs)
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] == 1


def test_a_grid_is_cut_finer_than_a_forest() -> None:
    def shares(g: OperandGraph) -> int:
        # With this bound every unit is of a single operand.
        return len({unit.share for unit in BoundedUnits(kappa=1.0).assign(g, WORKERS)})

    assert shares(pairwise(200)) == 8
    assert shares(grid(40, 40, 8e6)) > 8
