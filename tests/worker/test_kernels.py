"""Fused kernels on real workers are installed, removed and reported by `status`."""

import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
from distributed.utils_test import gen_cluster

from dask_marsched.config import Settings
from dask_marsched.kernels import backends
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.status import status
from tests.harness import planned_cluster, plugin_of, report_of

ONE = [("127.0.0.1", 1)]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Chunks of tests are small: kernels are compiled at the first one."""
    monkeypatch.setattr("dask_marsched.worker.kernels.PATIENCE", 0.0)


def with_kernels(**settings):
    alone = {
        "quota_enabled": False,
        "store_shared": False,
        "interrupt": False,
        "kernels_cache": None,
    }
    return MarsSchedulerPlugin(settings=Settings(kernels_enabled=True, **{**alone, **settings}))


def chain(seed=0):
    x = np.random.default_rng(seed).random((400, 100))
    y = da.from_array(x, chunks=(100, 100)).persist(scheduler="sync")
    return ((0.5 - y) ** 2 + 0.8 * (y - y**2)).mean(), np.mean((0.5 - x) ** 2 + 0.8 * (x - x**2))


def report(worker):
    found = worker.plugins["marsched"].report()["kernels"]
    assert found["exceptions"] == {}
    return found


async def compiled(worker):
    part = worker.plugins["marsched"]._parts["kernels"]
    part._kernels._compiler.submit(int).result()


def test_a_worker_imports_dask_array_only_for_arrays():
    code = "import sys, dask_marsched.worker_plugin; sys.exit('dask.array' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@planned_cluster(ONE, plugin=with_kernels)
async def test_chains_are_evaluated_by_kernels(c, s, a):
    for seed in range(4):
        array, wanted = chain(seed)
        # the kernel is compiled while NumPy evaluates the first chunks
        np.testing.assert_allclose(await c.compute(array), wanted, rtol=1e-13)
        await compiled(a)
    found = report(a)
    assert found["runs"] == 16
    # each backend that is ready gets one chunk at least
    assert found["fused"] >= 1
    (one,) = [e for e in found["expressions"] if e["text"].startswith("sum(")]
    assert one["runs"] >= 1
    assert all(ts.run_spec is None or "Kernel" not in str(type(ts.run_spec))
               for ts in a.state.tasks.values())  # fmt: skip
    assert report_of(s)["worker_parts"] == ["kernels"]
    text = str(await status(c))
    assert "kernels saved" in text
    assert "sum(" in text


@gen_cluster(client=True, nthreads=ONE)
async def test_removal_restores_the_worker(c, s, a):
    before = vars(a).keys() - {"plugins"}
    await c.register_plugin(with_kernels(quota_enabled=True))
    assert "execute" in vars(a)
    array, wanted = chain(1)
    np.testing.assert_allclose(await c.compute(array), wanted)
    plugin = plugin_of(s)
    await c.unregister_scheduler_plugin("marsched")
    await plugin.workers_told()
    assert "marsched" not in a.plugins
    assert vars(a).keys() - {"plugins"} == before
    array, wanted = chain(2)
    np.testing.assert_allclose(await c.compute(array), wanted)


@gen_cluster(client=True, nthreads=ONE)
async def test_without_a_compiler_status_says_so(c, s, a, monkeypatch):
    missing = {"llvm": "ModuleNotFoundError: No module named 'llvmlite'"}
    monkeypatch.setattr(backends, "make", lambda directory: (None, missing))
    await c.register_plugin(with_kernels())
    array, wanted = chain(3)
    np.testing.assert_allclose(await c.compute(array), wanted)
    assert report(a)["backends"] == []
    text = str(await status(c))
    assert "without llvm: ModuleNotFoundError: No module named 'llvmlite'" in text


@gen_cluster(client=True, nthreads=ONE)
async def test_a_user_without_a_home_has_kernels_and_no_cache(c, s, a, monkeypatch):
    def homeless(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.expanduser", homeless)
    await c.register_plugin(with_kernels(kernels_cache="auto"))
    await c.compute(chain()[0])
    assert report(a)["backends"] == ["llvm"]
    text = str(await status(c))
    assert "without cache: no directory for it that only this user may write to" in text


@gen_cluster(client=True, nthreads=ONE)
async def test_a_worker_that_fails_the_contract_checks_is_left_unchanged(c, s, a, monkeypatch):
    monkeypatch.setattr(
        "dask_marsched.host.kernels.execution.misfits", lambda worker: ["no execute"]
    )
    await c.register_plugin(with_kernels())
    found = a.plugins["marsched"].report()
    assert found["kernels"] is None
    assert "no execute" in found["reasons"]["kernels"]
    assert "execute" not in vars(a)
    array, wanted = chain(4)
    np.testing.assert_allclose(await c.compute(array), wanted)


@pytest.mark.extended
@gen_cluster(client=True, nthreads=ONE)
async def test_backends_are_imported_only_when_they_may_pay(c, s, a, monkeypatch, tmp_path):
    monkeypatch.setattr("dask_marsched.worker.kernels.PATIENCE", 1e9)
    directory = tmp_path / "cache"
    await c.register_plugin(with_kernels(kernels_cache=str(directory)))
    array, wanted = chain(5)
    np.testing.assert_allclose(await c.compute(array), wanted)
    kernels = a.plugins["marsched"]._parts["kernels"]._kernels
    assert kernels.report()["runs"] == 4
    assert not directory.exists()
    assert not kernels._compiler._threads
    kernels._patience = kernels._spent / 2  # what NumPy spends from now on is enough
    kernels._spent = 0.0
    array, wanted = chain(6)
    for _ in range(3):
        np.testing.assert_allclose(await c.compute(array), wanted)
    await compiled(a)
    assert directory.exists()
    assert report(a)["backends"]
