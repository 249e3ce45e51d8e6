"""Metadata and imports of an installation."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import dask_marsched
from dask_marsched.cli import marsched

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_version():
    assert PROJECT["version"] == dask_marsched.__version__
    assert importlib.metadata.version("dask-marsched") == dask_marsched.__version__


def test_entry_point():
    (entry,) = importlib.metadata.entry_points(group="dask_cli", name="marsched")
    assert entry.load() is marsched


def test_extra_all_has_every_extra():
    extras = PROJECT["optional-dependencies"]
    others = [name for name in extras if name != "all"]
    assert extras["all"] == [f"dask-marsched[{','.join(others)}]"]


def test_a_scheduler_needs_nothing_of_the_store():
    # What the workers' parts rest on is there on Linux only.
    code = "import sys, dask_marsched.scheduler_plugin; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "dask_marsched.scheduling.engine" in loaded
    assert not [name for name in loaded if name.startswith("dask_marsched.store")]
