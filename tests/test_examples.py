"""The programs in README.md, in its guides and in examples/ that start something, as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import distributed
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.utils import parse_bytes

import dask_marsched
from tests.processes import local_cluster

ROOT = Path(__file__).parents[1]


def programs(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


README = programs("README.md")
QUICK_START = programs("docs/start/quickstart.md")
ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
}


def run(*command):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, env=ENVIRONMENT, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.extended
def test_quickstart():
    printed = run(sys.executable, "examples/quickstart.py")
    assert "mean: 1.0000" in printed
    assert ": active" in printed
    assert re.search(r"graphs planned +1\n", printed)
    assert re.search(r"exceptions +none\n", printed)


@pytest.mark.extended
def test_cluster_from_command_line():
    printed = run("bash", "examples/cluster_from_command_line.sh")
    assert "mean: 1.0000" in printed
    assert ": active" in printed
    assert re.search(r"exceptions +none\n", printed)


@pytest.mark.slow
def test_xarray_climatology():
    printed = run(sys.executable, "examples/xarray_climatology.py", "--years", "1")
    # of one year every day is its own climatology
    assert "Standard deviation of the anomaly: 0.00" in printed


@pytest.mark.slow
def test_xarray_climatology_of_a_given_store(tmp_path):
    path = tmp_path / "winds.zarr"
    time = pd.date_range("2001-01-01", periods=730)
    values = np.where(time.year == 2001, 2.0, -2.0)[:, None] * np.ones(2)
    winds = xr.DataArray(values, {"time": time, "latitude": [45.0, 0.0]}, ("time", "latitude"))
    winds.to_dataset(name="u").chunk(time=100).to_zarr(path, consolidated=False)
    printed = run(sys.executable, "examples/xarray_climatology.py", str(path), "--variable", "u")
    assert "Standard deviation of the anomaly: 2.00" in printed


@pytest.mark.slow
def test_own_policy():
    printed = run(sys.executable, "examples/own_policy.py", "--size", "1000")
    rows = re.findall(r"^(.*?)  +moved (\S+ \w+) between the workers$", printed, re.M)
    assert [name for name, _ in rows] == ["stock Dask", "default policy", "own policy"]
    moved = [parse_bytes(amount) for _, amount in rows]
    assert moved[2] < 0.5 * moved[0]


@pytest.mark.extended
def test_scheduler_restart():
    printed = run(sys.executable, "examples/scheduler_restart.py")
    assert "Sum of squares: 70210, as expected: True" in printed
    assert "60 calls of a function for 60 tasks." in printed
    assert re.search(r"restarted .* with 61 operands", printed)


@pytest.mark.slow
def test_explain():
    printed = run(sys.executable, "examples/explain.py")
    assert "will it fit?" in printed
    assert "chunks of random are held until mean_agg-aggregate" in printed
    assert "mean of the variances: 0.08" in printed


def test_every_example_is_run_here():
    text = Path(__file__).read_text()
    programs = [path.name for path in (ROOT / "examples").iterdir() if path.is_file()]
    assert [name for name in programs if f"examples/{name}" not in text] == []


def test_quick_start_shows_each_way():
    assert len(README) == 2
    assert len(QUICK_START) == 5


@pytest.mark.parametrize("program", [p for p in QUICK_START if "tcp://" in p])
def test_quick_start_with_an_address(program, capsys):
    with local_cluster(n_workers=1, protocol="tcp", processes=False) as cluster:
        names = {}
        exec(program.replace("tcp://scheduler:8786", cluster.scheduler_address), names)
        client = names["client"]
        try:
            assert isinstance(client, distributed.Client)
            assert client.submit(sum, [1, 2]).result(timeout=30) == 3
        finally:
            client.close()
    if "print" in program:
        assert "dask_marsched on the scheduler tcp://" in capsys.readouterr().out


@pytest.mark.extended
def test_guide_to_explain(capsys):
    (program,) = [p for p in programs("docs/howto/explain.md") if "da.random" in p]
    exec(program.replace("20_000", "4_000"), {})
    assert "will it fit?" in capsys.readouterr().out


def test_readme_and_quick_start_without_an_address(capsys):
    (program,) = [p for p in README if "Client(s" in p]
    assert program.partition("  #")[0] in QUICK_START[0]
    status = next(p for p in README if "status" in p)
    unregister = next(p for p in QUICK_START if "unregister" in p)
    # the defaults of LocalCluster would take port 8787, and all of the machine
    small = 'n_workers=1, processes=False, dashboard_address=":0", '
    names = {}
    exec(program.replace("Client(s", f"Client({small}s"), names)
    with names["client"] as client:
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3
        exec(status, names)
        assert ": active" in capsys.readouterr().out
        exec(unregister, names)
        assert not dask_marsched.status(client).active
