"""Gets a suite's tests out of its repository and lays them over the installed package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import subprocess
from pathlib import Path

from suites.table import Suite


def lay_out(suite: Suite, repository: str | None, ref: str | None, folder: Path) -> Path:
    """Return a folder from which the tests can be run, with the installed package's code.

    If the tests are installed with the package, that is where it is installed.

    Parameters
    ----------
    suite : Suite
        What to lay out.
    repository : str or None
        A clone or a git directory on this machine; None clones it from GitHub.
    ref : str or None
        Which version of the tests; None takes that of the installed package.
    folder : Path
        Where clones and layouts are kept. They are made once for each version.

    Raises
    ------
    subprocess.CalledProcessError
        If the repository or the version in it is not to be had.
    """
    spec = importlib.util.find_spec(suite.package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{suite.package} is not installed")
    installed = Path(spec.submodule_search_locations[0])
    if not suite.repository:
        return installed.parent
    version = importlib.metadata.version(suite.package)
    ref = ref or suite.ref.format(version=version)
    place = folder / f"{suite.package}-{version}-tests-{ref}"
    if place.exists():
        return place
    source = repository or _clone(suite, ref, folder)
    making = place.with_suffix(".part")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    shutil.copytree(installed, making / suite.package)
    command = ["git", "-C", source, "archive", ref, "--", *suite.keep, *suite.tests]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "x", "-C", str(making)], input=archive, check=True)
    making.rename(place)
    return place


def _clone(suite: Suite, ref: str, folder: Path) -> str:
    clone = folder / f"{suite.repository.replace('/', '+')}-{ref}"
    if not clone.exists():
        url = f"https://github.com/{suite.repository}"
        command = ["git", "clone", "-q", "--depth", "1", "--branch", ref, url, str(clone)]
        subprocess.run(command, check=True)
    return str(clone)
