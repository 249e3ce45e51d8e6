"""``dask marsched``: found by Dask, light to import, and honest in its exit codes."""

import json
import subprocess
import sys

import click
import distributed
import pytest
from click.testing import CliRunner

from dask_marsched import MarsSchedulerPlugin
from dask_marsched import cli as module
from dask_marsched.cli import marsched
from tests.processes import dask_command, local_cluster

HEAVY = {"matplotlib", "zarr", "dask_marsched.demo", "dask_marsched.bench"}


@pytest.fixture
def address():
    with local_cluster(n_workers=1, protocol="tcp", processes=False) as cluster:
        yield cluster.scheduler_address


def run(*args):
    return CliRunner().invoke(marsched, args)


def test_dask_finds_the_commands():
    done = subprocess.run(
        dask_command("marsched", "--help"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for command in ("demo", "bench", "status"):
        assert f"  {command} " in done.stdout
    assert "Warning" not in done.stderr


def test_importing_the_commands_is_light():
    code = "import dask_marsched.cli, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert "dask_marsched.cli" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_status_of_an_active_plugin(address):
    with distributed.Client(address) as client:
        client.register_plugin(MarsSchedulerPlugin(assignment="dfs"))
        result = run("status", address)
        as_json = run("status", address, "--json")
    assert result.exit_code == 0, result.output
    assert f"dask_marsched on the scheduler {address}: active" in result.output
    assert "assignment dfs" in result.output
    assert as_json.exit_code == 0
    found = json.loads(as_json.output)
    assert found["active"] is True
    assert found["policies"]["assignment"] == "dfs"


def test_status_where_nothing_is_registered(address):
    result = run("status", address)
    assert result.exit_code == 1
    assert "not registered on this scheduler" in result.output


def test_status_where_the_package_is_missing(bare_scheduler):
    result = run("status", bare_scheduler)
    assert result.exit_code == 1
    assert "pip install ." in result.output


@pytest.mark.parametrize("command", ["status", "restart"])
def test_an_address_without_a_port(command, capfd):
    result = run(command, "somewhere")
    assert result.exit_code == 2
    assert "missing port number in address 'somewhere'" in result.output
    assert "Traceback" not in capfd.readouterr().err


def test_a_restart_of_nobody_says_so():
    result = run("restart", "tcp://127.0.0.1:9", "--timeout", "500ms")
    assert result.exit_code == 2
    assert "0.5 s" in result.output.partition("tcp://127.0.0.1:9: ")[2]


def test_status_of_nobody():
    result = run("status", "tcp://127.0.0.1:9", "--timeout", "500ms")
    assert result.exit_code == 2
    assert "Cannot connect to a scheduler at tcp://127.0.0.1:9" in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("timeout", ["soon", "-1s", "5 parsecs", ""])
def test_status_with_a_wrong_timeout(timeout):
    result = run("status", "tcp://127.0.0.1:9", "--timeout", timeout)
    assert result.exit_code == 2
    assert 'is not a duration such as "5s"' in result.output


def test_unknown_command():
    result = run("satus")
    assert result.exit_code == 2
    assert "satus" in result.output


@pytest.mark.parametrize("name", ["demo", "bench"])
def test_other_commands_are_there(name):
    result = run(name, "--help")
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_marsched.demo.command", None)
    with pytest.raises(click.ClickException, match=r"pip install '\.\[demo\]'"):
        module.marsched.get_command(click.Context(marsched), "demo")
