"""Compares the versions that wrote a journal with those that are to read its pickles."""

import sys
from collections.abc import Mapping
from importlib.metadata import version

from dask_marsched.journal.store import SETTING, JournalError

FORMAT = "3"  # of tables and records


def current_versions() -> dict[str, str]:
    """Return the versions that must be the same when a journal is read."""
    return {
        "format": FORMAT,
        "dask": version("dask"),
        "distributed": version("distributed"),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def check_versions(place: object, found: Mapping[str, str]) -> None:
    """Raise a JournalError for a journal that other versions wrote."""
    current = current_versions()
    other = {name: found.get(name) for name in current if found.get(name) != current[name]}
    if other:
        theirs = ", ".join(f"{name} {version}" for name, version in other.items())
        ours = ", ".join(f"{name} {current[name]}" for name in other)
        raise JournalError(
            f"{SETTING}: the journal in {place} was written with {theirs}, this is {ours}. "
            "Start the scheduler with those versions, or name an empty place to start with nothing"
        )
