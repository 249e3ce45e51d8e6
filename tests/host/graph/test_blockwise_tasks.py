"""Tasks of blockwise layers are those that Dask makes."""

import pickle

import dask.array as da
import numpy as np
import pytest
from dask import blockwise
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef
from dask.base import collections_to_expr
from distributed.utils_test import gen_cluster

from dask_marsched import MarsSchedulerPlugin
from dask_marsched.host.graph import blockwise_tasks
from dask_marsched.host.replacements import Replacements
from tests.harness import report_of


def _ones(shape=(20, 20), chunks=5):
    return da.ones(shape, chunks=chunks)


def _two_of_a_kind(c, axis, keepdims):
    return np.sum(c, axis=axis, keepdims=keepdims)


def _first(a, other=None):
    return a


def _total(a):
    return a.sum()


PROGRAMS = {
    "constants": lambda: _ones() + 1,
    "broadcast": lambda: _ones() + da.arange(20, chunks=5),
    "a scalar": lambda: _ones() + _ones().sum(),
    "a contraction": lambda: _ones() @ _ones().T,
    "a joined axis": lambda: da.blockwise(_total, "", _ones(), "ij", concatenate=True, dtype=float),
    "lists of blocks": lambda: da.einsum("ij,jk->ik", _ones(), _ones()),
    "blocks that are told where they are": lambda: da.map_blocks(np.copy, da.arange(30, chunks=7)),
    "block ids": lambda: da.from_array(np.arange(100.0).reshape(10, 10), chunks=3) + 1,
    "new axes": lambda: da.blockwise(
        _first, "ijk", _ones(), "ij", new_axes={"k": (2, 3)}, dtype=float
    ),
    "a delayed argument": lambda: da.blockwise(
        _first, "ij", _ones(), "ij", other=da.arange(3, chunks=1), dtype=float
    ),
    "a reduction": lambda: da.reduction(_ones(), _two_of_a_kind, _two_of_a_kind, dtype=float),
    "overlap": lambda: da.map_overlap(np.copy, _ones(), depth=1, boundary="periodic").std(),
    "an outer product": lambda: da.blockwise(
        np.add.outer, "ij", da.arange(8, chunks=2), "i", da.arange(6, chunks=3), "j", dtype=int
    ),
    "linear algebra": lambda: da.linalg.svd(_ones((40, 4), (10, 4)))[0],
    "one block of many": lambda: (_ones() + da.ones(20, chunks=5))[3, 7],
}


def _same(a, b):
    if type(a) is not type(b):
        return False
    match a:
        case Task():
            parts = ("key", "func", "args", "kwargs", "dependencies", "data_producer")
            return all(_same(getattr(a, part), getattr(b, part)) for part in parts)
        case TaskRef():
            return a.key == b.key
        case Alias():
            return (a.key, a.target) == (b.key, b.target)
        case DataNode():
            return a.key == b.key and _same(a.value, b.value)
        case dict():
            return list(a) == list(b) and all(_same(a[k], b[k]) for k in a)
        case list() | tuple():
            return len(a) == len(b) and all(map(_same, a, b))
        case np.ndarray():
            return np.array_equal(a, b)
    return pickle.dumps(a) == pickle.dumps(b)


@pytest.fixture
def installed():
    with Replacements() as undo:
        blockwise_tasks.install(undo)
        yield


def test_contract():
    assert blockwise_tasks.misfits() == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_tasks_are_those_of_dask(program, monkeypatch):
    sent = pickle.dumps(collections_to_expr([PROGRAMS[program]()]).optimize())
    expected = pickle.loads(sent).__dask_graph__()
    left_to_dask = []
    with Replacements() as undo:
        blockwise_tasks.install(undo)
        stock = blockwise_tasks._stock
        monkeypatch.setattr(
            blockwise_tasks, "_stock", lambda *a, **k: left_to_dask.append(a) or stock(*a, **k)
        )
        made = pickle.loads(sent).__dask_graph__()
    assert list(made) == list(expected)
    assert all(_same(made[key], expected[key]) for key in expected)
    assert not left_to_dask


def test_inputs_inside_of_arguments_are_left_to_dask(installed):
    task = Task("t", sum, DataNode("d", 1), TaskRef("a"))
    assert blockwise_tasks._is_plain(task)
    nested = Task("t", sum, Task("u", sum, TaskRef("a")))
    assert not blockwise_tasks._is_plain(nested)
    made = blockwise._make_blockwise_graph(
        nested, "z", "i", "x", "i", numblocks={"x": (2,)}, dims={"i": 2}, keys=("a",)
    )
    assert {key: node.dependencies for key, node in made.items()} == {
        ("z", 0): {("x", 0)},
        ("z", 1): {("x", 1)},
    }


def test_a_failure_is_left_to_dask(installed, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr(blockwise_tasks, "_tasks", fail)
    made = (_ones() + 1).__dask_graph__().to_dict()
    assert all(isinstance(node, GraphNode) for node in made.values())
    assert "left to Dask" in caplog.text


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)])
async def test_failures_are_counted(c, s, a):
    def fail(*args, **kwargs):
        raise ZeroDivisionError

    await c.register_plugin(MarsSchedulerPlugin())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise_tasks, "_tasks", fail)
        assert await c.compute((_ones() + 1).sum()) == 800
    assert set(report_of(s)["exceptions"]) == {"blockwise layer"}


def test_dask_has_its_own_function_back():
    before = blockwise._make_blockwise_graph
    with Replacements() as undo:
        blockwise_tasks.install(undo)
        assert blockwise._make_blockwise_graph is not before
    assert blockwise._make_blockwise_graph is before
