import subprocess
import sys
from dataclasses import replace

import click
import matplotlib.image
import pytest
from click.testing import CliRunner

from dask_marsched.demo.analyses import ANALYSES, KILLED
from dask_marsched.demo.command import demo, faults


@pytest.mark.slow
def test_whole(tmp_path):
    command = [sys.executable, "-m", "dask", "marsched", "demo", "--resolution", "15"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert "Writing" in done.stdout
    assert "All results are equal bit for bit." in done.stdout
    for analysis in (*ANALYSES, KILLED):
        assert done.stdout.count(f"  {analysis.title:30} ") in (2, 4)  # one round or two
    assert matplotlib.image.imread(tmp_path / "demo.png").ndim == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--resolution", "7"], "resolution is 7.0"),
        (["--resolution", "0.25"], "are available: close other programs"),
        (["--picture", "missing/demo.png"], "there is no directory missing"),
    ],
)
def test_bad_input_ends_before_anything_is_written(tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(demo, options)
    assert result.exit_code != 0
    assert said in result.output
    assert isinstance(result.exception, SystemExit)
    assert list(tmp_path.iterdir()) == []


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = CliRunner().invoke(demo, ["--resolution", "45"])
    assert result.exit_code == 1
    assert "pip install '.[demo]'" in result.output


def test_faults(comparisons):
    well = {"active": True, "reason": None, "exceptions": {}, "last_exception": None}
    assert faults(comparisons, [well, well]) == []
    wrong = [replace(comparisons[0], same=False), comparisons[1]]
    assert faults(wrong, [well]) == ["eddies: the results differ"]
    failed = {**well, "exceptions": {"decide": 2}, "last_exception": "KeyError: 1"}
    (said,) = faults(comparisons, [well, failed])
    assert said == "2 exceptions in the plugin's hook decide; the last one: KeyError: 1"
    off = {**well, "active": False, "reason": "unknown version"}
    assert faults(comparisons, [off]) == ["the plugin was not active: unknown version"]
    assert faults(comparisons, []) == ["the plugin was not active"]


def test_is_a_command():
    assert isinstance(demo, click.Command)
    result = CliRunner().invoke(demo, ["--help"])
    assert result.exit_code == 0
