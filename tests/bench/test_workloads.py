"""Every workload builds, and its tiny version computes what numpy says."""

import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest

from benchmarks import workloads
from benchmarks.workloads import Parameters, Workload
from benchmarks.workloads.communication import smooth
from benchmarks.workloads.held_out import make_part, spread, summarise
from benchmarks.workloads.patterns import join, make_leaf, neighbours

ALL = [workloads.get(name) for name in workloads.names(workloads.Kind)]
LOCAL = [workload for workload in ALL if not workload.needs_cluster]  # test_cluster has the rest


def smoothed(x):
    padded = smooth(np.pad(x, 1, mode="wrap"))
    return padded[1:-1, 1:-1]


def stencil(x):
    for _ in range(4):
        x = smoothed(x)
    return (x.mean(axis=0),)


def sorted_columns(x):
    return (np.sort(x, axis=0)[::64].sum(axis=0),)


def svd(x):
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    return s, abs(u).sum(axis=0)


def climatology(x):
    month = np.arange(len(x)) % 12
    mean = np.stack([x[month == m].mean(axis=0) for m in np.unique(month)])
    return mean.mean(axis=0), abs(x - mean[month]).mean(axis=(1, 2))


def vorticity(u, v, dx, dy):
    curl = (np.roll(v, -1, axis=2) - v) / dy - (np.roll(u, -1, axis=1) - u) / dx
    return (curl.mean(axis=(1, 2)),)


def zonal(x):
    return x.mean(axis=2), (x - x.mean(axis=0)).std(axis=0).mean(axis=1)


def cholesky(x):
    return (abs(np.linalg.cholesky(x @ x.T + len(x) * np.eye(len(x)))).sum(axis=0),)


def merged(left, right):
    joined = left.merge(right, on="key", suffixes=("_left", "_right"))
    return ((joined.value_left * joined.value_right).sum(),)


# What each workload must compute, written without dask from the values of its inputs.
REFERENCES = {
    "vegetation": lambda r, n, b: ((2.5 * (n - r) / (n + 6 * r - 7.5 * b + 10)).mean(axis=0),),
    "calibration": lambda x, y, z: (np.polyval([0.0007, 0.0042, -0.031, 1.04, 0.12], x).std(),),
    "rosenbrock": lambda x, y, z: (((0.5 - x) ** 2 + 0.8 * (y - x**2) ** 2).max(),),
    "thin-column-sum": lambda x: (x.sum(axis=1),),
    "binary-mean": lambda a, b: ((a + b).mean(),),
    "shifted-difference": lambda a, b: ((a[1:, 1:] - b[:-1, :-1]).mean(),),
    "vorticity": vorticity,
    "gram-matrix": lambda a: ((a @ a.T).sum(),),
    "add-transpose": lambda x: (2 * x.mean(),),
    "quadratic-means": lambda u, v: ((u**2).mean(0), (v**2).mean(0), (u * v).mean(0)),
    "anomaly": lambda x: (x.var(axis=0),),
    "standardise": lambda x: (abs((x - x.mean(0)) / x.std(0)).mean(axis=(1, 2)),),
    "map-overlap": lambda x: (smooth(x).mean(axis=0),),
    "rechunk-tasks": sorted_columns,
    "tall-skinny-svd": svd,
    "cumsum": lambda x: (x.cumsum(axis=0).mean(axis=(1, 2)),),
    "stencil": stencil,
    "climatology-flox": climatology,
    "climatology-plain": climatology,
    "matmul-chain": lambda a, b, c: ((a @ b @ c).sum(axis=0),),
    "tiny-chunks": lambda x: (x.sum(),),
    "tiny-map": lambda x: (np.sqrt(x).sum(),),
    "tiny-stencil": lambda x: (neighbours(x).sum(),),
    "persisted-arithmetic": lambda a, b: ((a - b).std(axis=0),),
    "masked-selection": lambda x, mask: (np.where(mask > 0.5, x, -x).sum(axis=0),),
    "transpose-rechunk": lambda x: (x.T.cumsum(axis=1)[:, ::64].sum(axis=0),),
    "frame-groupby": lambda left, _: (left.value.sum(),),
    "frame-merge": merged,
    "histogram": lambda x: (np.histogram(x - x.mean(0), 256, (-1.0, 1.0))[0],),
    "correlation": lambda x: (np.corrcoef(x),),
    "spectrum": lambda x: (abs(np.fft.rfft(x, axis=1)).mean(axis=0),),
    "multi-axis": lambda x: (x.max(axis=(0, 2)), x.min(axis=(1, 2)), x.mean(axis=(0, 1))),
    "broadcast-vector": lambda x, v: ((x * v - v).sum(axis=1),),
    "cholesky": cholesky,
    "zarr-zonal": zonal,
    "covariance": lambda x: (abs(np.cov(x)).max(axis=0),),
    "one-slice": lambda x: (x[1, :10, :10],),
    "one-mean": lambda x: (x.mean(axis=0),),
    "one-histogram": lambda x: (np.histogram(x, 50, (0, 1))[0],),
    "distances": lambda x, y: (((x[:, None] - y) ** 2).sum(axis=-1).min(axis=0),),
}


def trees(parameters):
    elements, sums = parameters.elements // 4, []
    for tree in range(parameters.count(48)):
        level = [make_leaf(elements, tree, leaf) for leaf in range(8)]
        while len(level) > 1:
            level = [join(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        sums.append(level[0].sum())
    return sums


def map_reduce(parameters):
    parts = [make_part(parameters.elements, i) for i in range(parameters.count(64))]
    shifted = parts[1:] + parts[:1]
    return [sum(summarise(np.append(a, b)) for a, b in zip(parts, shifted, strict=True))]


def bag(parameters):
    numbers = [n for i in range(parameters.count(200)) for n in spread(i)]
    return [sum(n for n in numbers if n % 2)]


# Those without inputs: what they compute follows from the parameters alone.
FROM_PARAMETERS = {
    "small-trees": trees,
    "tiny-tasks": lambda parameters: list(range(parameters.count(10_000))),
    "uneven-map-reduce": map_reduce,
    "bag-filter": bag,
}


@pytest.fixture
def tiny(tmp_path):
    return Parameters(size=0.02, chunk_bytes=8192, scratch=tmp_path)


@pytest.mark.parametrize("workload", LOCAL, ids=lambda workload: workload.name)
def test_computes_what_numpy_computes(workload, tiny):
    computed = dask.compute(*workload.build(tiny), scheduler="synchronous")
    if workload.name in FROM_PARAMETERS:
        expected = FROM_PARAMETERS[workload.name](tiny)
    else:
        values = dask.compute(*workload.inputs(tiny), scheduler="synchronous")
        expected = REFERENCES[workload.name](*values)
    assert len(computed) == len(expected)
    for got, wanted in zip(computed, expected, strict=True):
        # float32 from the store: numpy sums it in one go, dask in pieces
        tolerance = 1e-4 if workload.name == "zarr-zonal" else 1e-9
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.extended
@pytest.mark.parametrize("workload", LOCAL, ids=lambda workload: workload.name)
def test_two_builds_compute_the_same_bits(workload, tiny):
    first, second = (dask.compute(*workload.build(tiny), scheduler="synchronous") for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_results_are_small_so_that_gathering_them_is_not_what_is_measured():
    parameters = Parameters(size=0.25)
    for workload in ALL:
        if not {"zarr", "pandas"} & set(workload.requires):
            arrays = [c for c in workload.build(parameters) if isinstance(c, da.Array)]
            assert sum(a.nbytes for a in arrays) <= 3 * parameters.chunk_bytes, workload.name


def test_size_scales_the_chunks():
    for name in ("thin-column-sum", "binary-mean", "anomaly"):
        (small, *_), (large, *_) = (
            workloads.get(name).inputs(Parameters(size=size)) for size in (0.25, 1.0)
        )
        assert large.npartitions == 4 * small.npartitions
        assert large.chunksize == small.chunksize


def test_workloads_are_selected_by_kind_or_by_name():
    general, held_out = workloads.names(), workloads.names([workloads.Kind.HELD_OUT])
    assert not set(general) & set(held_out)
    others = set(workloads.names(workloads.Kind)) - {*general, *held_out}
    arithmetic = {"vegetation", "calibration", "rosenbrock", "covariance", "distances"}
    assert others == {*arithmetic, "one-slice", "one-mean", "one-histogram"}
    assert [w.name for w in workloads.select()] == list(general)
    assert [w.name for w in workloads.select(kinds=[workloads.Kind.HELD_OUT])] == list(held_out)
    assert [w.name for w in workloads.select(["cumsum", "cholesky"])] == ["cumsum", "cholesky"]


def test_unknown_name_is_an_error_that_lists_the_names():
    with pytest.raises(ValueError, match=r"no workload named 'nope'; accepted: thin-column-sum, "):
        workloads.select(["nope"])


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="a workload named 'cumsum' is registered already"):
        workloads.register("cumsum", "", lambda _: (), lambda _: ())


@pytest.mark.parametrize("bad", [{"size": 0}, {"size": float("nan")}, {"chunk_bytes": 8}])
def test_bad_parameters_are_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Parameters(**bad)


def test_missing_modules_are_named():
    workload = Workload("x", "", lambda _: (), lambda _: (), requires=("dask", "no_such_module"))
    assert workload.missing() == ("no_such_module",)


@pytest.mark.extended
def test_frisky_can_import_the_workloads_from_the_source_tree():
    """Its environment has dask and distributed, and no other package that this one needs."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(['llvmlite', 'numexpr', 'pyarrow'])\n"
        "import benchmarks.frisky.session"
    )
    env = {"PYTHONPATH": str(Path(workloads.__file__).parents[2]), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_frames_have_the_keys_to_meet(tiny):
    left, right = dask.compute(*workloads.get("frame-merge").inputs(tiny))
    assert len(pd.merge(left, right, on="key")) > 0
