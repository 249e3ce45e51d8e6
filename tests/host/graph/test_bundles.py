"""Bundles: small results made by one task, from which their readers pick."""

from __future__ import annotations

import operator

import dask
import dask.array as da
import numpy as np
import pytest
from dask._task_spec import DataNode, Task, TaskRef

from dask_marsched.host.graph.bundles import bundled
from dask_marsched.host.graph.result_sizes import ChunkSizes
from tests.host.graph.test_fusion import fusion, subgraphs


def graph():
    return {
        "x": DataNode("x", 5),
        ("s", 0): Task(("s", 0), operator.add, TaskRef("x"), 1),
        ("s", 1): Task(("s", 1), operator.mul, TaskRef("x"), 2),
        "r": Task("r", operator.sub, TaskRef(("s", 0)), TaskRef(("s", 1))),
    }


def run(dsk, key):
    return dsk[key]({name: run(dsk, name) for name in dsk[key].dependencies})


def test_a_bundle_computes_the_same():
    sizes = ChunkSizes(exact={("s", 0): 8}, estimated={("s", 1): 4})
    left, stand_for = bundled(graph(), [[("s", 0), ("s", 1)]], sizes)
    assert run(left, "r") == run(graph(), "r") == -4
    (bundle,) = [key for key, own in stand_for.items() if len(own) > 1]
    assert left[bundle].dependencies == {"x"}
    assert stand_for[bundle] == [("s", 0), ("s", 1)]
    assert sizes.estimated[bundle] == 12
    # no key of the original graph may now mean a bundle
    assert not {("s", 0), ("s", 1)} & left.keys()


def test_names_follow_from_the_contents_of_a_bundle():
    one, _ = bundled(graph(), [[("s", 0), ("s", 1)]], ChunkSizes())
    again, _ = bundled(graph(), [[("s", 0), ("s", 1)]], ChunkSizes())
    other, _ = bundled(graph(), [[("s", 1), ("s", 0)]], ChunkSizes())
    assert one.keys() == again.keys()
    assert one.keys() & other.keys() == {"x", "r"}


def mirrored():
    x = da.random.default_rng(7).random((1200, 1200), chunks=(100, 100))
    return x, (x + x.T).mean()


@subgraphs()
async def test_a_block_and_its_mirror_image_are_one_task(c, s, *workers):
    x, mean = mirrored()
    before = len(dict(dask.optimize(mean)[0].__dask_graph__()))
    result = await c.compute(mean)
    values = np.asarray(await c.compute(x))
    np.testing.assert_allclose(result, (values + values.T).mean())
    operands, into = fusion(s)
    assert before - (operands - into) < 0.6 * before


@subgraphs()
async def test_neighbours_pick_their_slices(c, s, *workers):
    x = da.random.default_rng(8).random((1200, 1200), chunks=(200, 200))
    y = da.overlap.map_overlap(lambda b: b * 2, x, depth=1, boundary="none", meta=x._meta).sum()
    result, whole = await c.gather(c.compute([y, x]))
    np.testing.assert_allclose(result, 2 * np.asarray(whole).sum())


@subgraphs()
async def test_a_bundled_slice_can_be_requested_later(c, s, *workers):
    x = (await c.persist(da.ones((400, 400), chunks=(200, 200)))) + 1
    first, second = x[:1], x[1:2]
    assert await c.compute(first.sum() + second.sum()) == 1600
    np.testing.assert_array_equal(await c.compute(first), np.full((1, 400), 2.0))


@subgraphs()
async def test_a_task_that_fails_takes_no_other_result_with_it(c, s, *workers):
    x = await c.persist(da.ones((800, 800), chunks=(200, 200)))
    blocks = [x.blocks[i, j] for i in range(4) for j in range(4)]
    good = da.concatenate([block[:2, :2] for block in blocks]).sum()
    bad = da.concatenate(
        [block[2:4, 2:4].map_blocks(np.linalg.inv, dtype=float) for block in blocks]
    ).sum()
    of_good, of_bad = c.compute([good, bad])
    assert await of_good == 64
    with pytest.raises(np.linalg.LinAlgError):
        await of_bad
