"""``--preload dask_marsched`` in each kind of process, with real commands where it matters."""

import asyncio
import logging
import sys
from pathlib import Path

import click
import dask.config
import distributed
import pytest
from distributed import Nanny, Scheduler, Worker

from dask_marsched import MarsSchedulerPlugin, dask_setup, dask_teardown, status
from dask_marsched.preload import failures
from tests.processes import (
    SCHEDULER_OPTIONS,
    WITHOUT_PACKAGE,
    dask_command,
    local_cluster,
    scheduler_address,
    scheduler_command,
)

PRELOAD_SCHEDULER = {"distributed.scheduler.preload": ["dask_marsched"]}
PRELOAD_CLIENT = {"distributed.client.preload": ["dask_marsched"]}


def status_of(address):
    with distributed.Client(address) as client:
        return status(client)


# --- the scheduler ------------------------------------------------------------------------


@pytest.mark.extended
def test_command_with_options(start_scheduler, start):
    options = ("--marsched-assignment", "dfs", "--marsched-ordering", "mars")
    options += ("--marsched-fusion", "chains")
    more = ("--marsched-config", "quota.fraction=0.5", "--marsched-config", "api.enabled=false")
    address, scheduler = start_scheduler("--preload", "dask_marsched", *options, *more)
    start(*dask_command("worker", address, "--no-nanny", "--no-dashboard", "--nthreads", "1"))
    with distributed.Client(address) as client:
        client.wait_for_workers(1, timeout=60)
        assert client.submit(sum, [1, 2, 3]).result(timeout=30) == 6
        found = status(client)
        settings = client.run_on_scheduler(
            lambda dask_scheduler: vars(dask_scheduler.plugins["marsched"].settings)
        )
    assert found.active, found
    assert found.policies["assignment"] == "dfs"
    assert found.policies["ordering"] == "mars"
    assert settings["fusion"] == "chains"
    assert settings["quota_fraction"] == 0.5
    assert settings["api_enabled"] is False
    assert "Failed" not in scheduler.output


@pytest.mark.extended
def test_old_command(start):
    # distributed no longer installs dask-scheduler; the module that it called is still there
    script = Path(sys.executable).with_name("dask-scheduler")
    module = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    command = [str(script)] if script.exists() else module
    scheduler = start(*command, *SCHEDULER_OPTIONS, "--preload", "dask_marsched")
    found = status_of(scheduler_address(scheduler))
    assert found.active, found
    assert found.policies["assignment"] == "units"


@pytest.mark.extended
def test_environment_variables(start_scheduler):
    env = {
        "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": '["dask_marsched"]',
        "DASK_MARSCHED__ASSIGNMENT__POLICY": "bfs",
    }
    address, _ = start_scheduler(env=env)
    found = status_of(address)
    assert found.active, found
    assert found.policies["assignment"] == "bfs"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--marsched-assignment", "dsf"], "'dsf' is not one of bfs, dfs, units"),
        (["--marsched-config", "quota.fraction"], "not of the form KEY=VALUE"),
        (["--marsched-config", "quota.fraction=much"], "must be a number above 0"),
        (["--marsched-config", "quota.fractoin=1"], "Did you mean marsched.quota.fraction?"),
        (["--marsched-fusion", "all"], "'all' is not one of 'off', 'chains', 'subgraphs'"),
        (["--marsched-config", "placement.policy=most-bytes"], "is not an option"),
        (["--marsched-colour", "blue"], "No such option"),
    ],
)
def test_wrong_option_ends_the_command(options, message):
    # the function that the commands of distributed check their preloads' options with
    context = click.Context(dask_setup)
    with pytest.raises(click.UsageError) as caught:
        dask_setup.parse_args(context, options)
    assert message in caught.value.format_message()


@pytest.mark.extended
def test_wrong_option_ends_the_command_itself(start):
    command = scheduler_command("--preload", "dask_marsched", "--marsched-ordering", "nowhere")
    scheduler = start(*command)
    assert scheduler.wait() == 2
    assert "'--marsched-ordering': 'nowhere' is not one of dask, mars" in scheduler.output
    assert "Traceback" not in scheduler.output


@pytest.mark.extended
def test_wrong_configuration_is_one_clear_message(start_scheduler):
    env = {"DASK_MARSCHED__ASSIGNMENT__POLICY": "dsf"}
    address, scheduler = start_scheduler("--preload", "dask_marsched", env=env)
    message = "marsched.assignment.policy must be the name of a registered policy (bfs, dfs, units)"
    found = status_of(address)
    assert not found.active
    assert message in found.reason
    lines = [line for line in scheduler.output.splitlines() if message in line]
    assert len(lines) == 1
    assert "dask_marsched is off on this scheduler" in lines[0]
    assert "Traceback" not in scheduler.output


def test_local_cluster_starts_the_plugin_once():
    with dask.config.set(PRELOAD_SCHEDULER), local_cluster(n_workers=1, processes=False) as cluster:
        assert isinstance(cluster.scheduler.plugins["marsched"], MarsSchedulerPlugin)
        with distributed.Client(cluster) as client:
            assert client.submit(sum, [1, 2]).result(timeout=30) == 3
            assert status(client).active


def test_failures_are_forgotten_with_the_scheduler():
    wrong = {**PRELOAD_SCHEDULER, "marsched.enabled": "perhaps"}
    with dask.config.set(wrong), local_cluster(n_workers=0, processes=False) as cluster:
        scheduler = cluster.scheduler
        assert "marsched.enabled must be true or false" in failures[scheduler]
        assert "marsched" not in scheduler.plugins
    assert scheduler not in failures


# --- workers and nannies ------------------------------------------------------------------


@pytest.mark.extended
def test_worker_command_takes_the_same_options(start):
    with local_cluster(n_workers=0, protocol="tcp", processes=False) as cluster:
        options = ("--no-dashboard", "--nthreads", "1", "--preload", "dask_marsched")
        preload_nanny = ("--preload-nanny", "dask_marsched")
        worker = start(
            *dask_command("worker", cluster.scheduler_address, *preload_nanny, *options),
            "--marsched-assignment",
            "dfs",
        )
        with distributed.Client(cluster) as client:
            client.wait_for_workers(1, timeout=60)
            assert client.submit(sum, [1, 2]).result(timeout=30) == 3
            assert not status(client).active
        worker.stop()  # while there is a scheduler to say goodbye to
        assert worker.output.count("Run preload setup: dask_marsched") == 2
        assert "Failed" not in worker.output


async def test_each_kind_of_process(caplog):
    caplog.set_level(logging.DEBUG, logger="dask_marsched")
    async with (
        Scheduler(dashboard_address=":0", port=0, host="127.0.0.1") as scheduler,
        Worker(scheduler.address, nthreads=1, dashboard=False) as worker,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        await call_preload(worker)
        assert "nothing to set up" in caplog.text
        assert scheduler.plugins.keys().isdisjoint({"marsched"})
        await call_preload(client)
        assert (await status(client)).active
        await dask_teardown(client)
        assert (await status(client)).active


@pytest.mark.extended
async def test_nanny_has_nothing_to_do(caplog):
    caplog.set_level(logging.DEBUG, logger="dask_marsched")
    preload = {"preload_nanny": ["dask_marsched"], "preload": ["dask_marsched"]}
    async with (
        Scheduler(dashboard_address=":0", port=0, host="127.0.0.1") as scheduler,
        Nanny(scheduler.address, nthreads=1, dashboard=False, **preload) as nanny,
    ):
        assert f"nothing to set up in {nanny!r}" in caplog.text or "Nanny" in caplog.text
        assert len(scheduler.workers) == 1


async def test_something_else_is_refused():
    with pytest.raises(TypeError, match="Scheduler, Worker, Nanny or Client"):
        await call_preload(object())


def call_preload(dask_object):
    """Call dask_setup as distributed does."""
    context = dask_setup.make_context("dask_setup", [])
    return dask_setup.callback(dask_object, *context.args, **context.params)


# --- clients ------------------------------------------------------------------------------


def test_client_preload(cluster):
    with dask.config.set(PRELOAD_CLIENT), distributed.Client(cluster) as client:
        assert status(client).active
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3


async def test_client_preload_asynchronous():
    with dask.config.set(PRELOAD_CLIENT):
        async with (
            Scheduler(dashboard_address=":0", port=0, host="127.0.0.1") as scheduler,
            distributed.Client(scheduler.address, asynchronous=True) as client,
        ):
            assert (await status(client)).active


def test_client_preload_keeps_the_plugin_that_is_there(cluster):
    with distributed.Client(cluster) as first:
        first.register_plugin(MarsSchedulerPlugin(assignment="dfs"))
        plugin = cluster.scheduler.plugins["marsched"]
        with dask.config.set(PRELOAD_CLIENT), distributed.Client(cluster):
            assert cluster.scheduler.plugins["marsched"] is plugin


def test_client_preload_with_a_scheduler_that_lacks_the_package(bare_scheduler, caplog):
    with dask.config.set(PRELOAD_CLIENT), distributed.Client(bare_scheduler) as client:
        assert client.scheduler_info()["workers"] == {}
    records = [record for record in caplog.records if record.name == "dask_marsched.preload"]
    assert len(records) == 1
    assert "dask_marsched is not installed on the scheduler" in records[0].getMessage()


def test_client_preload_with_a_wrong_configuration(cluster, caplog):
    wrong = {**PRELOAD_CLIENT, "marsched.quota.fraction": 0}
    with dask.config.set(wrong), distributed.Client(cluster) as client:
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3
    message = "marsched.quota.fraction must be a number above 0 and not above 1, not 0"
    assert message in caplog.text


def nested_sum():
    with distributed.worker_client() as client:
        return client.submit(sum, [1, 2]).result()


@pytest.mark.extended
def test_clients_of_workers_do_not_register(start):
    with local_cluster(n_workers=0, protocol="tcp", processes=False) as cluster:
        env = {"DASK_DISTRIBUTED__CLIENT__PRELOAD": '["dask_marsched"]'}
        command = ("worker", cluster.scheduler_address, "--no-nanny", "--no-dashboard")
        worker = start(*dask_command(*command, "--nthreads", "2"), env=env)
        with distributed.Client(cluster) as client:
            client.wait_for_workers(1, timeout=60)
            assert client.submit(nested_sum).result(timeout=30) == 3
            assert "marsched" not in cluster.scheduler.plugins
        worker.stop()  # while there is a scheduler to say goodbye to
        assert "Run preload setup: dask_marsched" in worker.output


def test_package_is_missing_where_the_scheduler_preloads_it(start):
    code = WITHOUT_PACKAGE + "from distributed.cli.dask_scheduler import main; main()"
    options = (*SCHEDULER_OPTIONS, "--preload", "dask_marsched")
    scheduler = start(sys.executable, "-c", code, *options)
    assert scheduler.wait() != 0
    assert "No module named 'dask_marsched'" in scheduler.output


def test_teardown_is_awaitable():
    asyncio.run(dask_teardown(object()))
