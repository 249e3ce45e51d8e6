"""Tests versions of Python and distributed: ``python -m suites.versions``.

Each pair gets an environment of its own, into which this package is installed. In it run the tests
of the contracts with that version, and of what a user starts. A pair whose interpreter this machine
lacks is named and left out. Ends with 0 if the tests of all others pass.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from suites.runner import ROOT

FOLDER = ROOT / "build" / "versions"
TESTS = ("tests/host", "tests/compat", "tests/test_client.py", "tests/test_preload.py")


def versions() -> list[list[str]]:
    """Return the packages of each environment, the version of Python first."""
    listed: list[list[str]] = yaml.safe_load((ROOT / "suites" / "versions.yaml").read_text())
    return listed


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter of a version of Python, None if there is none."""
    if version == ".".join(map(str, sys.version_info[:2])):
        return sys.executable
    # first, as pyenv puts commands on the path that only name the versions it has
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(pyenv[-1]) if pyenv else shutil.which(f"python{version}")


def environment(python: str, packages: list[str], folder: Path) -> Path:
    """Return the interpreter of an environment with this package and others, made if needed."""
    made = folder / "bin" / "python"
    if not made.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
    install = [made, "-m", "pip", "install", "--quiet", "--editable", ".[test]", "scipy"]
    subprocess.run([*install, *packages], check=True, cwd=ROOT)
    return made


def main() -> int:
    """Test all versions, or those with a word of the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m suites.versions", description=__doc__)
    parser.add_argument("words", nargs="*", help="only versions that contain one of these")
    words = parser.parse_args().words
    failed = False
    for version, *packages in versions():
        name = "-".join([version, *packages])
        if words and not any(word in name for word in words):
            continue
        python = interpreter(version)
        if python is None:
            print(f"{name}: no Python {version} on this machine", flush=True)
            continue
        made = environment(python, packages, FOLDER / name.replace("==", "-"))
        command = [made, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *TESTS]
        chosen = ["-m", "not slow and not extended", "--hypothesis-profile", "quick"]
        ended = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True)
        print(f"{name}: {ended.stdout.strip().splitlines()[-1]}", flush=True)
        if ended.returncode:
            failed = True
            print(ended.stdout, ended.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
