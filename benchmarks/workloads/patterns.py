"""More patterns of communication, and graphs of very many tiny tasks."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks.workloads.communication import smooth
from dask_marsched.bench.workloads import Array, Kind, Parameters, random_grid, register


def _stencil(_: Parameters, x: Array) -> tuple[Array]:
    """Four steps, each of which needs the rim of the last one's neighbours."""
    for _step in range(4):
        x = da.map_overlap(smooth, x, depth=1, boundary="periodic", dtype=x.dtype)
    return (x.mean(axis=0),)


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


def _chain_inputs(parameters: Parameters) -> tuple[Array, ...]:
    n = parameters.grid(4)
    small = Parameters(parameters.size, max(128, parameters.chunk_bytes // 2), parameters.scratch)
    return tuple(random_grid(small, seed, n, n) for seed in (44, 45, 46))


def _tiny_chunks(parameters: Parameters) -> tuple[Array]:
    n = parameters.grid(100)
    return (da.ones((10 * n, 10 * n), chunks=(10, 10)),)


def neighbours(block: Any) -> Any:
    """Return sums of three points along the first axis; the rim keeps its values."""
    out = block.copy()
    out[1:-1] = block[:-2] + block[1:-1] + block[2:]
    return out


def _tiny_stencil(_: Parameters, x: Array) -> tuple[Array]:
    depth = (1, 0)
    return (da.map_overlap(neighbours, x, depth=depth, boundary="none", dtype=x.dtype).sum(),)


register("tall-skinny-svd", "SVD of a tall, thin matrix (tsqr)", _tall, _tall_skinny_svd)
register("small-trees", "many independent binary trees of eight leaves", lambda _: (), _trees)
register(
    "stencil",
    "a five-point mean on a torus, four steps one after another",
    lambda p: (random_grid(p, 49, p.grid(5), p.grid(5)),),
    _stencil,
)
register(
    "matmul-chain",
    "(a @ b @ c).sum(axis=0): products of products",
    _chain_inputs,
    lambda _, a, b, c: ((a @ b @ c).sum(axis=0),),
)
register(
    "tiny-chunks",
    "the sum of ten thousand chunks of 10 x 10",
    _tiny_chunks,
    lambda _, x: (x.sum(),),
    kind=Kind.OVERHEAD,
)
register(
    "tiny-map",
    "a function over ten thousand chunks of 10 x 10, and the sum",
    _tiny_chunks,
    lambda _, x: (da.map_blocks(np.sqrt, x, dtype=x.dtype).sum(),),
    kind=Kind.OVERHEAD,
)
register(
    "tiny-stencil",
    "a three-point stencil over ten thousand chunks of 10 x 10, and the sum",
    _tiny_chunks,
    _tiny_stencil,
    kind=Kind.OVERHEAD,
)
