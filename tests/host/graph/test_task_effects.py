"""Side effects of the tasks of real graphs, and of single functions."""

import functools
import operator

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef, convert_legacy_graph
from dask.utils import M
from distributed import Lock

from dask_marsched.host.graph.task_effects import Effects, effects

UNKNOWN, READS, NONE = Effects.UNKNOWN, Effects.READS, Effects.NONE


def users(x, *_, **__):
    return x


class Users:
    def __call__(self, x):
        return x

    def run(self, x):
        return x


class Demanding:
    """A callable object that knows which attributes it has."""

    def __getattr__(self, name):
        raise (AttributeError if name.startswith("__") else KeyError)(name)

    def __call__(self, x):
        return x


class Source:
    """Stands for an array of Zarr or HDF5."""

    shape, dtype, ndim, chunks = (8, 8), np.dtype(float), 2, (4, 4)

    def __getitem__(self, index):
        return np.ones(self.shape)[index]

    def __setitem__(self, index, value):
        pass


X = da.ones((8, 8), chunks=4)


def tasks(collection, fuse=True):
    if fuse:
        (collection,) = dask.optimize(collection)
    return convert_legacy_graph(dict(collection.__dask_graph__())).values()


def least(collection, fuse=True):
    return min(map(effects, tasks(collection, fuse)))


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize(
    ("collection", "expected"),
    [
        ((X - X.mean(axis=0)).std(), NONE),
        (X.T.dot(X), NONE),
        (X.map_blocks(np.sin), NONE),
        (X[X > 0.5].sum(), NONE),
        (da.random.random((8, 8), chunks=4).argmax(axis=0), NONE),
        (da.apply_along_axis(np.median, 0, X.rechunk((8, 4))), NONE),
        (da.linalg.svd(X.rechunk((4, 8)))[1], NONE),
        (db.range(10, 3).sum(), NONE),
        (da.from_array(Source(), chunks=4).sum(), READS),
        (da.from_array(Source(), chunks=4, lock=True).sum(), READS),
        (X.map_blocks(users), UNKNOWN),
        (X.map_overlap(users, depth=1, boundary="none"), UNKNOWN),
        (da.reduction(X, users, np.sum, dtype=float), UNKNOWN),
        (da.apply_along_axis(users, 0, X.rechunk((8, 4)), dtype=float, shape=()), UNKNOWN),
        (da.from_array(Source(), chunks=4, lock=Lock("x")).sum(), UNKNOWN),
        (X.store(Source(), compute=False, lock=False), UNKNOWN),
        (X.store(Source(), compute=False, return_stored=True, lock=False), UNKNOWN),
        (db.range(10, 3).map(users), UNKNOWN),
        (db.range(10, 3).groupby(lambda x: x % 2, shuffle="tasks"), UNKNOWN),
        (dask.delayed(users, pure=True)(1), UNKNOWN),
        (dask.delayed(Users(), pure=True)(1), UNKNOWN),
        (dask.delayed(Users()).run(1), UNKNOWN),
        (dask.delayed(dask.delayed(users))(1), UNKNOWN),
        (dask.delayed(np.add)(1, 2), NONE),
    ],
)
def test_collections(collection, expected, fuse):
    assert least(collection, fuse) is expected


def test_frames(tmp_path):
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": range(20), "b": range(20)})
    frame = dd.from_pandas(table, npartitions=4)
    table.to_parquet(tmp_path / "read")
    for query, expected in [
        (frame[frame.a > 3].groupby("a").b.mean(), NONE),
        (frame.assign(c=frame.a + 1).c.max(), NONE),
        (dd.read_parquet(tmp_path / "read").a.sum(), READS),
        (frame.a.map(users, meta=("a", int)), UNKNOWN),
        (frame.map_partitions(users, meta={"a": int}), UNKNOWN),
        (frame.shuffle("a", shuffle_method="disk"), UNKNOWN),
        (dd.from_map(users, range(3), meta={"a": int}), UNKNOWN),
    ]:
        assert least(query.optimize(), fuse=False) is expected, query
    written, *_ = frame.to_csv(tmp_path / "*.csv", compute=False)
    assert least(written) is UNKNOWN


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (np.sum, NONE),
        (np.save, UNKNOWN),
        (np.load, READS),
        (np.copyto, UNKNOWN),
        (np.random.RandomState(0).normal, NONE),
        (np.frompyfunc(users, 1, 1), UNKNOWN),
        (np.vectorize(users), UNKNOWN),
        (np.vectorize(np.sin), NONE),
        (functools.partial(np.sum, axis=0), NONE),
        (functools.partial(users, 1), UNKNOWN),
        (functools.partial(np.apply_over_axes, users), UNKNOWN),
        (functools.lru_cache(users), UNKNOWN),
        (M.sum, NONE),
        (M.tofile, UNKNOWN),
        (M.to_csv, UNKNOWN),
        (M.run, UNKNOWN),
        (operator.methodcaller("sum", axis=0), NONE),
        (operator.methodcaller("map", users), UNKNOWN),
        (operator.itemgetter(1), NONE),
        (operator.add, NONE),
        (operator.iadd, UNKNOWN),
        (operator.setitem, UNKNOWN),
        (sum, NONE),
        (print, UNKNOWN),
        (open, UNKNOWN),
        (Users(), UNKNOWN),
        (Demanding(), UNKNOWN),
        (Users().run, UNKNOWN),
        (Users, UNKNOWN),
        (lambda x: x, UNKNOWN),
        ([].append, UNKNOWN),
        (dask.compute, UNKNOWN),
    ],
)
def test_functions(function, expected):
    assert effects(Task("x", function, TaskRef("y"))) is expected


def test_the_annotation_overrides_the_analysis():
    assert effects(Task("x", users, 1), {"pure": True}) is NONE
    assert effects(Task("x", abs, 1), {"pure": False}) is UNKNOWN
    assert effects(Task("x", abs, 1), {"retries": 2}) is NONE


def test_large_and_missing_run_specs_are_unknown():
    assert effects(None) is UNKNOWN
    assert effects(Task("x", sum, [[i] for i in range(10_000)])) is UNKNOWN
    deep: list = []
    for _ in range(1_900):
        deep = [deep]
    assert effects(Task("x", sum, deep)) is UNKNOWN
    assert effects(Task("x", sum, list(range(10_000)))) is NONE
