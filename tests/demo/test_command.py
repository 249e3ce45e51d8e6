import json
import subprocess
import sys
from dataclasses import replace

import click
import matplotlib.image
import pytest
from click.testing import CliRunner

from dask_marsched.demo import store
from dask_marsched.demo.command import demo, faults
from dask_marsched.demo.layout import Layout
from dask_marsched.status import Status

SMALL = ["--years", "1", "--resolution", "15", "--workers", "2"]


def run(tmp_path, *options):
    return subprocess.run(
        [sys.executable, "-m", "dask", "marsched", "demo", *SMALL, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.slow
def test_whole(tmp_path):
    first = run(tmp_path, "--store", "weather.zarr", "--json", "numbers.json")
    assert first.returncode == 0, first.stderr
    assert "Writing" in first.stdout
    assert "All results are equal bit for bit." in first.stdout
    assert first.stdout.count("moved between workers") == 3
    assert matplotlib.image.imread(tmp_path / "demo.png").ndim == 3

    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert [analysis["equal"] for analysis in numbers["analyses"]] == [True] * 3
    assert numbers["analyses"][2]["stock"]["moved"] > 0
    assert numbers["status"]["active"]
    assert numbers["status"]["graphs_planned"] == 3
    assert not numbers["status"]["exceptions"]
    assert (tmp_path / "weather.zarr").is_dir()


@pytest.mark.slow
def test_store_is_reused(tmp_path):
    store.write(tmp_path / "weather.zarr", Layout(years=1, resolution=15))
    done = run(tmp_path, "--store", "weather.zarr")
    assert done.returncode == 0, done.stderr
    assert "The store is there" in done.stdout
    assert "Writing" not in done.stdout
    assert "All results are equal bit for bit." in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--years", "0"], "years is 0: accepted are 1 to 100"),
        (["--resolution", "7"], "resolution is 7.0"),
        (["--memory-limit", "much"], "'much' is no amount of memory; write e.g. 2GiB"),
        (["--memory-limit", "10MiB"], "use a larger --memory-limit"),
        (["--picture", "missing/demo.png"], "there is no directory missing"),
        (["--years", "100", "--resolution", "0.25"], "are available: use fewer --years"),
        (["--workers", "0"], "0 is not in the range"),
    ],
)
def test_bad_input_ends_before_anything_is_written(tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(demo, ["--store", "weather.zarr", *options])
    assert result.exit_code != 0
    assert said in result.output
    assert isinstance(result.exception, SystemExit)
    assert list(tmp_path.iterdir()) == []


def test_store_of_others_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    result = CliRunner().invoke(demo, [*SMALL, "--store", str(tmp_path)])
    assert result.exit_code == 1
    assert "is no store of this demo: name another path" in result.output
    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(demo, SMALL)
    assert result.exit_code == 1
    assert "pip install 'dask-marsched[demo]'" in result.output


def test_faults(comparisons):
    well = Status("tcp://scheduler:1", True, None)
    assert faults(comparisons, well) == []
    wrong = [replace(comparisons[0], equal=False), comparisons[1]]
    assert faults(wrong, well) == ["an analysis that moves much: the results differ"]
    failed = replace(well, exceptions={"decide": 2}, last_exception="KeyError: 1")
    (said,) = faults(comparisons, failed)
    assert said == "2 exceptions in the plugin's hook decide; the last one: KeyError: 1"
    off = Status("tcp://scheduler:1", False, "unknown version")
    assert faults(comparisons, off) == ["the plugin was not active: unknown version"]
    assert faults(comparisons, None) == ["the plugin was not active: its status is not known"]


def test_is_a_command():
    assert isinstance(demo, click.Command)
    result = CliRunner().invoke(demo, ["--help"])
    assert result.exit_code == 0
