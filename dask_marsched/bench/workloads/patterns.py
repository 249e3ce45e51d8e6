"""Patterns of communication, from neighbours to all-to-all, and graphs of very many tasks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np

from .arrays import Array, random_grid, random_series
from .registry import Kind, Parameters, Workload, register


def smooth(block: Any) -> Any:
    """Mean of each point and its four neighbours; the rim keeps its values."""
    out = block.copy()
    out[1:-1, 1:-1] = (
        block[1:-1, 1:-1] + block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    ) / 5.0
    return out


def _smooth_mean(_: Parameters, x: Array) -> tuple[Array]:
    return (da.map_overlap(smooth, x, depth=1, boundary="none", dtype=x.dtype).mean(axis=0),)


def _stencil(_: Parameters, x: Array) -> tuple[Array]:
    """Four steps, each of which needs the rim of the last one's neighbours."""
    for _step in range(4):
        x = da.map_overlap(smooth, x, depth=1, boundary="periodic", dtype=x.dtype)
    return (x.mean(axis=0),)


def _bands(parameters: Parameters) -> tuple[Array]:
    """Rows cut into bands; as many columns as bands, so that columns are of the same size."""
    n = parameters.count(40)
    columns = n * max(1, parameters.side // n)
    rows = max(1, parameters.elements // columns)
    generator = da.random.default_rng(41)
    return (generator.random((n * rows, columns), chunks=(rows, columns)),)


def _rechunk(method: str) -> Any:
    def expression(_: Parameters, x: Array) -> tuple[Array]:
        n = len(x.chunks[0])
        columns = x.rechunk((x.shape[0], x.shape[1] // n), method=method)
        return (da.map_blocks(np.sort, columns, axis=0, dtype=x.dtype)[::64].sum(axis=0),)

    return expression


def _tall(parameters: Parameters) -> tuple[Array]:
    rows = parameters.elements // 64
    generator = da.random.default_rng(42)
    return (generator.random((parameters.count(64) * rows, 64), chunks=(rows, 64)),)


def _tall_skinny_svd(_: Parameters, x: Array) -> tuple[Array, ...]:
    u, s, _v = da.linalg.svd(x)
    return s, abs(u).sum(axis=0)


def make_leaf(elements: int, tree: int, leaf: int) -> Any:
    """Return a leaf of a small tree: a ramp that depends on where the leaf is."""
    return np.arange(elements, dtype="f8") + 100.0 * tree + leaf


def join(left: Any, right: Any) -> Any:
    """Join two branches of a small tree."""
    return np.sqrt(left * right + 1.0)


def _trees(parameters: Parameters) -> tuple[Any, ...]:
    elements = max(1, parameters.elements // 4)
    leaf, total = dask.delayed(make_leaf, pure=True), dask.delayed(np.sum, pure=True)
    roots = []
    for tree in range(parameters.count(48)):
        branches = [leaf(elements, tree, i) for i in range(8)]
        while len(branches) > 1:
            pairs = zip(branches[::2], branches[1::2], strict=True)
            branches = [dask.delayed(join, pure=True)(a, b) for a, b in pairs]
        roots.append(total(branches[0]))
    return tuple(roots)


def _months(parameters: Parameters) -> tuple[Array]:
    return (random_series(parameters, 43, parameters.count(96)),)


def _climatology(use_flox: bool) -> Any:
    def expression(_: Parameters, x: Array) -> tuple[Array, ...]:
        import pandas as pd
        import xarray as xr

        # Twelve steps a year: each month returns every twelfth chunk, as days of the year do.
        time = pd.date_range("2000-01-01", periods=x.shape[0], freq="MS")
        data = xr.DataArray(x, dims=("time", "y", "x"), coords={"time": time})
        with xr.set_options(use_flox=use_flox):  # type: ignore[no-untyped-call]  # untyped there
            by_month = data.groupby("time.month")
            climatology = by_month.mean("time")
            anomaly = by_month - climatology
        return climatology.mean("month").data, abs(anomaly).mean(("y", "x")).data

    return expression


def _chain_inputs(parameters: Parameters) -> tuple[Array, ...]:
    n = parameters.grid(4)
    small = Parameters(parameters.size, max(128, parameters.chunk_bytes // 2), parameters.scratch)
    return tuple(random_grid(small, seed, n, n) for seed in (44, 45, 46))


def identity(value: int) -> int:
    """Return the argument: a task that does nothing."""
    return value


def _tiny_tasks(parameters: Parameters) -> tuple[Any, ...]:
    task = dask.delayed(identity, pure=True)
    return tuple(task(i) for i in range(parameters.count(10_000)))


def _tiny_chunks(parameters: Parameters) -> tuple[Array]:
    n = parameters.grid(100)
    return (da.ones((10 * n, 10 * n), chunks=(10, 10)),)


def neighbours(block: Any) -> Any:
    """Sum of each point and the two next to it along the first axis; the rim keeps its values."""
    out = block.copy()
    out[1:-1] = block[:-2] + block[1:-1] + block[2:]
    return out


def _tiny_stencil(_: Parameters, x: Array) -> tuple[Array]:
    depth = (1, 0)
    return (da.map_overlap(neighbours, x, depth=depth, boundary="none", dtype=x.dtype).sum(),)


def _no_inputs(_: Parameters) -> tuple[()]:
    return ()


register(
    Workload(
        "map-overlap",
        "a five-point mean by map_overlap: every chunk needs its neighbours' rim",
        lambda p: (random_grid(p, 47, p.grid(8), p.grid(8)),),
        _smooth_mean,
    )
)
register(Workload("rechunk-tasks", "rows to columns by tasks, sorted", _bands, _rechunk("tasks")))
register(
    Workload(
        "rechunk-p2p",
        "rows to columns by the peer-to-peer shuffle, sorted",
        _bands,
        _rechunk("p2p"),
        requires=("distributed", "pyarrow"),
        needs_cluster=True,
    )
)
register(Workload("tall-skinny-svd", "SVD of a tall, thin matrix (tsqr)", _tall, _tall_skinny_svd))
register(
    Workload(
        "cumsum",
        "running sum along the chunked axis: a chain across all chunks",
        lambda p: (random_series(p, 48, p.count(80)),),
        lambda _, x: (x.cumsum(axis=0).mean(axis=(1, 2)),),
    )
)
register(
    Workload(
        "small-trees",
        "many independent binary trees of eight leaves",
        _no_inputs,
        lambda p: _trees(p),
    )
)
register(
    Workload(
        "stencil",
        "a five-point mean on a torus, four steps one after another",
        lambda p: (random_grid(p, 49, p.grid(5), p.grid(5)),),
        _stencil,
    )
)
register(
    Workload(
        "climatology-flox",
        "monthly climatology and anomaly with xarray, grouped by flox",
        _months,
        _climatology(use_flox=True),
        requires=("xarray", "flox"),
    )
)
register(
    Workload(
        "climatology-plain",
        "monthly climatology and anomaly with xarray, without flox",
        _months,
        _climatology(use_flox=False),
        requires=("xarray",),
    )
)
register(
    Workload(
        "matmul-chain",
        "(a @ b @ c).sum(axis=0): products of products",
        _chain_inputs,
        lambda _, a, b, c: ((a @ b @ c).sum(axis=0),),
    )
)
register(
    Workload(
        "tiny-tasks",
        "ten thousand independent tasks that do nothing",
        _no_inputs,
        lambda p: _tiny_tasks(p),
        kind=Kind.OVERHEAD,
    )
)
register(
    Workload(
        "tiny-chunks",
        "the sum of ten thousand chunks of 10 x 10",
        _tiny_chunks,
        lambda _, x: (x.sum(),),
        kind=Kind.OVERHEAD,
    )
)
register(
    Workload(
        "tiny-map",
        "a function over ten thousand chunks of 10 x 10, and the sum",
        _tiny_chunks,
        lambda _, x: (da.map_blocks(np.sqrt, x, dtype=x.dtype).sum(),),
        kind=Kind.OVERHEAD,
    )
)
register(
    Workload(
        "tiny-stencil",
        "a three-point stencil over ten thousand chunks of 10 x 10, and the sum",
        _tiny_chunks,
        _tiny_stencil,
        kind=Kind.OVERHEAD,
    )
)
