"""Metadata and imports of an installation."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import tomllib
import yaml
from distributed.protocol.pickle import dumps

import dask_marsched
from dask_marsched.cli import marsched
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def loaded_yaml(path):
    return yaml.safe_load((ROOT / path).read_text())


RECIPE = loaded_yaml("conda/recipe/recipe.yaml")


def test_version():
    assert PROJECT["version"] == dask_marsched.__version__
    assert importlib.metadata.version("dask-marsched") == dask_marsched.__version__
    assert loaded_yaml("CITATION.cff")["version"] == dask_marsched.__version__
    assert RECIPE["context"]["version"] == dask_marsched.__version__


def test_the_conda_recipe_requires_the_same_packages():
    # conda-forge's dask brings distributed, pandas and bokeh, too
    required = {item.replace("dask>", "dask-core>") for item in PROJECT["dependencies"]}
    found = {item.replace(" ", "") for item in RECIPE["requirements"]["run"]}
    assert found == {"python", *required}


def test_wheels_are_built_for_the_versions_of_python_that_are_tested():
    tested = {version for version, *_ in loaded_yaml("suites/versions.yaml")}
    found = PYPROJECT["tool"]["cibuildwheel"]["build"]
    builds = [re.sub(r"cp3(\d+)-\*", r"3.\1", build) for build in found]
    assert set(builds) == tested
    assert PROJECT["requires-python"] == f">={builds[0]}"


def test_entry_point():
    (entry,) = importlib.metadata.entry_points(group="dask_cli", name="marsched")
    assert entry.load() is marsched


def test_extra_all_has_every_extra_but_the_documentation():
    extras = PROJECT["optional-dependencies"]
    others = [name for name in extras if name not in ("all", "docs")]
    assert extras["all"] == [f"dask-marsched[{','.join(others)}]"]


def test_a_scheduler_needs_nothing_of_the_store():
    # What the workers' parts rest on is there on Linux only.
    code = "import sys, dask_marsched.scheduler_plugin; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "dask_marsched.scheduling.engine" in loaded
    assert not [name for name in loaded if name.startswith("dask_marsched.store")]


def test_clients_of_python_3_14_can_send_the_plugin():
    # Iterators of itertools can be pickled before that only.
    assert b"itertools" not in dumps(MarsSchedulerPlugin())
