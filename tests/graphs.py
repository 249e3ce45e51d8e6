"""Small graphs of operands, written down or drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from hypothesis import strategies as st

from dask_marsched.core.graph import Edges, OperandGraph
from dask_marsched.core.plan import Unit
from dask_marsched.policies.planning.forecast import LINK, Forecaster, PlanForecast


def graph(
    inputs: Mapping[str, Sequence[str]],
    nbytes: Mapping[str, float] | float = 8.0,
    home: Mapping[str, int] | None = None,
    home_bytes: float = 8.0,
) -> OperandGraph:
    """Build a graph from names, in the order in which they are written."""
    names = list(inputs)
    number = {name: i for i, name in enumerate(names)}
    sizes = [nbytes if isinstance(nbytes, float) else nbytes.get(n, 8.0) for n in names]
    homes = [(home or {}).get(name, -1) for name in names]
    return OperandGraph(
        names,
        Edges.of(sorted(number[i] for i in inputs[name]) for name in names),
        sizes,
        b"\1" * len(names),
        homes,
        [home_bytes if h >= 0 else 0.0 for h in homes],
    )


def pairwise(n: int) -> OperandGraph:
    """n pairs of sources that meet in a sum, pair by pair."""
    inputs: dict[str, list[str]] = {}
    for i in range(n):
        inputs |= {f"a{i}": [], f"b{i}": [], f"s{i}": [f"a{i}", f"b{i}"]}
    return graph(inputs)


def tree(leaves: int, fan: int, partial: float = 8.0) -> OperandGraph:
    """A tree reduction, numbered depth first as dask.order does."""
    inputs: dict[str, list[str]] = {}
    sizes: dict[str, float] = {}

    def add(level: int, lo: int, hi: int) -> str:
        if hi - lo == 1:
            inputs[f"x{lo}"] = []
            return f"x{lo}"
        step = -(-(hi - lo) // fan)
        children = [add(level + 1, i, min(hi, i + step)) for i in range(lo, hi, step)]
        name = f"r{level}.{lo}"
        inputs[name] = children
        sizes[name] = partial
        return name

    add(0, 0, leaves)
    return graph(inputs, sizes)


@st.composite
def operand_graphs(draw: st.DrawFn, most: int = 40) -> OperandGraph:
    n = draw(st.integers(1, most))
    inputs = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=4))) if i else [] for i in range(n)
    ]
    sizes = draw(st.lists(st.floats(0, 1e6), min_size=n, max_size=n))
    return OperandGraph([f"k{i}" for i in range(n)], Edges.of(inputs), sizes, b"\1" * n)


def forecast(
    g: OperandGraph,
    units: Sequence[Unit],
    threads: Sequence[int],
    *,
    like_stock: bool = False,
    link: float = LINK,
    scheduler_time: float = 0.0,
    hosts: Sequence[Hashable] = (),
) -> PlanForecast:
    """Forecast one plan of a graph."""
    return Forecaster(g, threads, scheduler_time, hosts).plan(units, link, like_stock=like_stock)
