"""What a process imports of this package: only what it runs."""

from __future__ import annotations

import subprocess
import sys

import dask.array as da
import pytest

import dask_marsched
from dask_marsched import Client, MarsSchedulerPlugin
from dask_marsched.config import Settings
from dask_marsched.policies import registry
from tests.processes import local_cluster

#: Run elsewhere, or only if an option or an event asks for it.
ELSEWHERE = (
    "dask_marsched.api",
    "dask_marsched.cancellation",
    "dask_marsched.client",
    "dask_marsched.dashboard",
    "dask_marsched.host.graph.fusion",
    "dask_marsched.host.restart",
    "dask_marsched.host.scheduler.adoption",
    "dask_marsched.host.worker.reconnection",
    "dask_marsched.journal",
    "dask_marsched.monitoring",
    "dask_marsched.policies.assignment",
    "dask_marsched.policies.ordering",
    "dask_marsched.policies.placement",
    "dask_marsched.policies.planning",
    "dask_marsched.policies.unit_queues",
    "dask_marsched.policies.withholding",
    "dask_marsched.preload",
    "dask_marsched.scheduler_plugin",
    "dask_marsched.scheduling",
    "dask_marsched.simulation",
    "dask_marsched.worker.kernels",
)


def _within(modules: list[str], packages: tuple[str, ...]) -> list[str]:
    return [name for name in modules if any(f"{name}.".startswith(f"{p}.") for p in packages)]


def test_a_worker_imports_only_what_it_runs() -> None:
    def modules() -> list[str]:
        import sys

        return sorted(name for name in sys.modules if name.startswith("dask_marsched"))

    settings = Settings().replace(kernels_enabled=False)
    with (
        local_cluster(n_workers=1) as made,
        Client(made, scheduler_plugin=MarsSchedulerPlugin(settings=settings)) as c,
    ):
        x = da.ones((1000, 1000), chunks=250)
        assert c.compute((x + x.T).sum()).result() == 2e6
        loaded = c.run(modules)
    for names in loaded.values():
        assert "dask_marsched.worker_plugin" in names, "it is a worker of ours"
        assert not _within(names, ELSEWHERE)


def test_the_worker_plugin_can_be_imported_where_the_store_cannot() -> None:
    code = (
        "import ctypes, os, sys, distributed, dask.array, psutil;"
        "ctypes.CDLL = ctypes.PyDLL = sys.modules['fcntl'] = None; del os.register_at_fork;"
        "import dask_marsched.worker_plugin as module; print(module.MarsWorkerPlugin().name)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "marsched\n"


def test_the_package_imports_its_parts_on_first_use() -> None:
    code = "import dask_marsched, sys; print(*sys.modules)"
    names = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not _within(names, ELSEWHERE)


@pytest.mark.parametrize("name", dask_marsched.__all__)
def test_public_names(name: str) -> None:
    assert name in dir(dask_marsched)
    assert getattr(dask_marsched, name) is not None


def test_status_stays_a_function_when_its_module_is_imported() -> None:
    code = (
        "import dask_marsched.status as module; from dask_marsched.status import Status;"
        "import dask_marsched; assert callable(dask_marsched.status); print(Status.__name__)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "Status\n"


@pytest.mark.parametrize("kind", registry.KINDS)
def test_names_of_our_policies_are_those_of_their_classes(kind: str) -> None:
    for name in registry.names(kind):
        assert registry.create(kind, name).name == name


def test_a_policy_of_a_user_replaces_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registry, "ordering", dict(registry._registry["ordering"]))

    @registry.register("ordering")
    class Mine:
        name = "dask"

    assert type(registry.create("ordering", "dask")) is Mine
    assert registry.names("ordering") == ("dask", "mars")
