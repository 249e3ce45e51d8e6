"""Sizes derived before the run, compared with those of the real results.

Every computation is made for real, from the expression as the scheduler receives it, and every
size that is called exact is compared with what `dask.sizeof` measures.
"""

import json
import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from dask._expr import LLGExpr
from dask.delayed import delayed
from distributed import Client, SchedulerPlugin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_marsched.host.graph.result_sizes import chunk_nbytes
from tests.sized_runs import QUERY_PLANNED, WORKLOADS, arrive, measure, random


def assert_exact(*collections, unknown=0.0, **kwargs):
    """Check all exact sizes, and that at most a share of the tasks has none."""
    result = measure(*collections, **kwargs)
    assert result.wrong == {}
    assert result.failures == {}
    assert result.inexact <= unknown * result.tasks, sorted(result.open, key=str)[:5]
    return result


@pytest.mark.parametrize("finalized", [True, False], ids=["compute", "persist"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_all_sizes_of_a_workload_are_exact(name, finalized):
    made = WORKLOADS[name]()
    assert_exact(*(made if isinstance(made, tuple) else (made,)), finalized=finalized)


@pytest.mark.parametrize("fused", [True, False])
def test_fusion_changes_nothing(fused):
    x = random()
    with dask.config.set({"optimization.fuse.active": fused}):
        assert_exact(((x[1:] + 1) * 2).T.mean(0))


def counts(x, axis, keepdims):
    return x.sum(axis=axis, keepdims=keepdims) if 0 in x.shape else {"n": x.shape}


def counts_total(parts, axis, keepdims):
    return np.ones(10)


# ---- Unknown sizes ---------------------------------------------------------------------------


def add(a, b):
    return float((a + b).mean())


def test_what_a_source_makes_on_the_way_is_known():
    x = da.random.default_rng(0).random((40, 40), chunks=10)
    expr, dsk = arrive((x + x.T).sum(axis=0))
    within = chunk_nbytes(expr, dsk).within
    assert len(within) == 4  # the chunks on the diagonal, in one task with the first step
    assert set(within.values()) == {800}


def test_masks_make_sizes_unknown():
    x = random()
    expr, dsk = arrive(x[x > 0.5])
    sizes = chunk_nbytes(expr, dsk)
    last = [key for key in dsk if key[0] == "finalize" or str(key).startswith("finalize")]
    assert last
    assert not sizes.exact.keys() & set(last)
    assert_exact(x[x > 0.5], unknown=0.5)
    assert_exact(x[x[:, 0] > 0.5] + 1, unknown=0.5)


def test_objects_have_no_size():
    x = da.from_array(np.array(["a", "bb", None], dtype=object), chunks=2)
    expr, dsk = arrive(x + x, finalized=False)
    sizes = chunk_nbytes(expr, dsk)
    added = [key for key in dsk if key[0].startswith("add")]
    assert added
    assert not (sizes.exact.keys() | sizes.estimated.keys()) & set(added)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: da.topk(x, 2, axis=0),
        lambda x: da.unique(da.floor(x * 5)),
        lambda x: da.bincount(da.floor(x[:, 0] * 5).astype(int), minlength=9),
        lambda x: da.percentile(x[:, 0], [10, 50]),
        lambda x: da.linalg.lu(x[:10].rechunk(5))[2],
        lambda x: da.reduction(x, counts, counts_total, axis=0, dtype="f8", concatenate=False),
        lambda x: da.apply_along_axis(np.sort, 0, x),
        lambda x: delayed(add)(*x.to_delayed(optimize_graph=False).ravel()[:2]),
        lambda x: da.from_array(["a", "bb", "ccc"], chunks=2)[1],
        lambda x: da.from_array(["a", "bb", "ccc"], chunks=2).astype("S")[1],
    ],
    ids=["topk", "unique", "bincount", "percentile", "lu", "custom reduction", "along an axis",
         "a function named add", "a string", "bytes"],
)  # fmt: skip
def test_doubtful_sizes_are_not_exact(make):
    result = assert_exact(make(random((12, 10))), unknown=1)
    assert result.inexact


def test_partial_results_of_user_reductions_are_estimated():
    def total(x, axis, keepdims):
        return np.sum(x, axis=axis, keepdims=keepdims)

    x = da.reduction(random(), total, total, axis=0, dtype="f8")
    result = assert_exact(x, unknown=1)
    assert result.estimated
    assert result.misjudged == {}


def test_minima_of_empty_chunks_are_not_exact():
    x = da.from_array(np.arange(4), chunks=((4, 0),))
    assert_exact(x.min(), unknown=1)


def test_without_layers_only_the_tasks_are_read():
    x = random()
    _, dsk = arrive(x + 1)
    sizes = chunk_nbytes(LLGExpr(dsk), dsk)
    assert sizes.failures == {}
    assert not any(str(key).startswith("finalize") for key in sizes.exact)


@pytest.mark.parametrize("expr", [None, 1, "expr", object()])
def test_it_never_raises(expr):
    _, dsk = arrive(random() + 1)
    chunk_nbytes(expr, dsk)
    assert chunk_nbytes(expr, {}).exact == {}


def test_failures_are_counted():
    x = random() + 1
    x.dask.layers[x.name].collection_annotations["chunks"] = (("four", 5), (5, 5))
    expr, dsk = arrive(x, finalized=False)
    sizes = chunk_nbytes(expr, dsk)
    assert sum(sizes.failures.values()) == 1
    assert not any(key[0] == x.name for key in sizes.exact)


# ---- Any expression --------------------------------------------------------------------------


@st.composite
def expressions(draw):
    def source():
        shape = (draw(st.integers(4, 9)), draw(st.integers(4, 9)))
        chunks = (draw(st.integers(2, 5)), draw(st.integers(2, 5)))
        kind = draw(st.sampled_from(["random", "ones", "numpy"]))
        if kind == "random":
            return random(shape, chunks)
        if kind == "ones":
            return da.ones(shape, chunks=chunks, dtype=draw(st.sampled_from(["f4", "i2", "f8"])))
        return da.from_array(np.arange(shape[0] * shape[1]).reshape(shape), chunks=chunks)

    x = source()
    for _ in range(draw(st.integers(1, 5))):
        step = draw(st.sampled_from(STEPS))
        if x.ndim == 2 and 0 not in x.shape:
            x = step(draw, x)
    return x


def sliced(draw, x):
    return x[tuple(slice(draw(st.integers(0, n - 1)), None, draw(st.sampled_from([1, 2, -1])))
                   for n in x.shape)]  # fmt: skip


def rechunked(draw, x):
    return x.rechunk(tuple(draw(st.integers(1, n)) for n in x.shape))


def reduced(draw, x):
    name = draw(st.sampled_from(["sum", "mean", "max", "var", "argmin", "any", "prod", "std"]))
    axis = draw(st.sampled_from([0, 1] if name == "argmin" else [0, 1, None]))
    keepdims = draw(st.booleans())
    split = draw(st.sampled_from([None, 2]))
    return getattr(x, name)(axis=axis, keepdims=keepdims, split_every=split)


STEPS = [
    sliced,
    rechunked,
    reduced,
    lambda draw, x: x + 1,
    lambda draw, x: x * x.astype("f4"),
    lambda draw, x: x - x.mean(0),
    lambda draw, x: x.T,
    lambda draw, x: da.concatenate([x, x + 1], axis=draw(st.integers(0, 1))),
    lambda draw, x: da.stack([x, x])[1],
    lambda draw, x: x[[draw(st.integers(0, x.shape[0] - 1)) for _ in range(3)]],
    lambda draw, x: da.broadcast_to(x, (2, *x.shape))[1],
    lambda draw, x: x.cumsum(axis=0),
    lambda draw, x: da.flip(x, 1),
]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(x=expressions(), finalized=st.booleans())
def test_exact_sizes_of_any_expression_are_exact(x, finalized):
    assert_exact(x, finalized=finalized, unknown=1)


# ---- P2P, query planning, xarray -------------------------------------------------------------


class Sizes(SchedulerPlugin):
    """Keeps the sizes of results before they are released."""

    def __init__(self):
        self.nbytes = {}

    def transition(self, key, start, finish, *args, **kwargs):
        if finish == "memory":
            self.nbytes[key] = kwargs["nbytes"]


def test_rechunking_by_p2p_on_a_cluster(cluster):
    x = random((24, 24), (3, 24)).rechunk((24, 3), method="p2p")
    expr, dsk = arrive(x, finalized=False)
    sizes = chunk_nbytes(expr, dsk)
    seen = Sizes()
    cluster.scheduler.add_plugin(seen)
    with Client(cluster) as client:
        client.get(dsk, [(x.name, 0, i) for i in range(8)])
    assert sizes.failures == {}
    assert any("rechunk-transfer" in str(key) for key in seen.nbytes)
    assert seen.nbytes.keys() == dsk.keys()
    assert {key: sizes.exact.get(key) for key in seen.nbytes} == seen.nbytes


@pytest.mark.extended
def test_query_planning():
    # Another process, because the setting is read when dask.array is first imported.
    run = subprocess.run(
        [sys.executable, "-m", "tests.sized_runs"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert report == {name: [] for name in QUERY_PLANNED}


@pytest.fixture(scope="module")
def weather(tmp_path_factory):
    path = tmp_path_factory.mktemp("weather") / "weather.zarr"
    values = np.random.default_rng(0).random((40, 6, 8), dtype="f4")
    time = np.datetime64("2000-01-01") + np.arange(40) * np.timedelta64(9, "D")
    coords = {"time": time.astype("M8[ns]"), "lat": np.arange(6.0), "lon": np.arange(8.0)}
    fields = dict.fromkeys(("a", "b"), (("time", "lat", "lon"), values))
    chunked = xr.Dataset(fields, coords).chunk({"time": 10, "lat": 3, "lon": 8})
    chunked.to_zarr(path, zarr_format=2, consolidated=True)
    return xr.open_zarr(path)


def climatology(ds, flox):
    with xr.set_options(use_flox=flox):
        months = ds.a.groupby("time.month")
        return months - months.mean()


ANALYSES = {
    "mean": lambda ds: (ds.a.mean("time"), ds.b.mean()),
    "quadratic": lambda ds: ((ds.a**2).mean("time"), (ds.a * ds.b).std("time")),
    "regional": lambda ds: ((ds.a * ds.b).sel(lat=slice(1, 4)).mean(("lat", "lon")),),
    "climatology": lambda ds: (climatology(ds, False),),
    "selected": lambda ds: (ds.a.isel(lat=slice(1, 5), lon=[1, 4, 2]),),
    "weighted": lambda ds: (ds.a.weighted(np.cos(ds.lat)).mean(("lat", "lon")),),
    "rolling": lambda ds: (ds.a.rolling(time=3).mean(),),
    "coarsened": lambda ds: (ds.a.coarsen(time=4).mean(),),
    "filled": lambda ds: (ds.a.where(ds.a > 0.5).fillna(0),),
    "maximum": lambda ds: (ds.a.max("time"), ds.a.argmax("time")),
    "differences": lambda ds: (ds.a.diff("time"), ds.a.shift(time=1)),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_xarray_over_zarr(weather, name):
    arrays = [variable.data for variable in ANALYSES[name](weather)]
    # At most the two arrays of the store have no exact size.
    result = assert_exact(*arrays, unknown=1)
    assert result.inexact <= 2


def test_sizes_of_dicts_of_flox_are_unknown(weather):
    pytest.importorskip("flox")
    result = assert_exact(climatology(weather, True).data, unknown=0.25)
    assert result.inexact


@pytest.mark.parametrize("name", ["sum", "mean", "min", "var"])
def test_masked_chunks_are_not_exact(name):
    x = da.ma.masked_greater(random(), 0.5)
    assert_exact(getattr(x, name)(0), unknown=1)
    assert_exact(getattr(da.ma.masked_less(random(), 2), name)(), unknown=1)
    assert_exact(da.sqrt(da.ma.masked_less(random(), 2).var()), unknown=1)


def test_other_array_types_are_not_exact():
    x = xr.DataArray(np.ones((6, 6)))
    assert_exact(da.from_array(x, chunks=3, asarray=False), finalized=False, unknown=1)
    assert_exact(da.from_array(x, chunks=6, asarray=True), unknown=1)
    assert_exact(da.from_array(x, chunks=3, inline_array=True), finalized=False, unknown=1)


def test_sparse_chunks_are_not_exact():
    sparse = pytest.importorskip("scipy.sparse")
    x = da.from_array(sparse.csr_matrix(np.eye(8)), asarray=False, chunks=8)
    assert_exact(x, unknown=1)
    assert_exact(da.from_array(sparse.csr_matrix(np.eye(8)), chunks=8), unknown=1)
    made = random((8, 8), 4).map_blocks(sparse.csr_matrix)
    assert_exact(made[:2], finalized=False, unknown=1)


def test_shapes_derived_from_unknown_ones_are_not_exact():
    x = random((20, 8), (10, 8))
    masked = x[:, da.from_array(np.arange(8) < 3, chunks=8)]
    u, s, v = da.linalg.tsqr(masked, compute_svd=True)
    assert not np.isnan(u.shape).any()
    assert_exact(u, s, v, unknown=1)
