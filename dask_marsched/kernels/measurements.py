"""Shares measurements of backends among processes, through files in the cache."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dask_marsched.kernels import cache_files
from dask_marsched.kernels.statistics import Case
from dask_marsched.kernels.tuner import Trial


class Measurements:
    """The measurements in a directory, or none, that belong to one identity (see `Kernels`)."""

    def __init__(self, directory: Path | None, identity: str) -> None:
        self._directory = directory
        self._identity = identity

    def _path(self, case: Case) -> Path | None:
        text = f"{self._identity} {case.name}"
        return self._directory and cache_files.path_of(text, self._directory, ".json")

    def recall(self, case: Case) -> None:
        """Add the measurements of other processes to a case."""
        content = cache_files.read(self._path(case))
        if content is None:
            return
        try:
            trial = Trial.from_json(json.loads(content))
        except (ValueError, TypeError, AttributeError):
            return
        with case.lock:
            case.trial.merge(trial)
            case.kept = True

    def keep(self, cases: Iterable[Case]) -> None:
        """Write new measurements, joined with those of other processes."""
        for case in cases:
            if not case.unsaved:
                continue
            case.unsaved = False
            self.recall(case)
            with case.lock:
                content = json.dumps(case.trial.to_json()).encode()
            cache_files.write(self._path(case), content)
