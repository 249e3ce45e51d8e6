"""Shares measurements of backends among processes, through files in the cache."""

from __future__ import annotations

import hashlib
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
        if self._directory is None:
            return None
        digest = hashlib.sha256(f"{self._identity} {case.name}".encode()).hexdigest()
        return self._directory / f"{digest[:40]}.json"

    def recall(self, case: Case) -> None:
        """Add the measurements of other processes to a case."""
        path = self._path(case)
        content = None if path is None else cache_files.read(path)
        if content is None:
            return
        try:
            trial = Trial.from_json(json.loads(content))
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        with case.lock:
            case.trial.merge(trial)
            case.kept = True

    def keep(self, cases: Iterable[Case]) -> None:
        """Write new measurements, joined with those of other processes."""
        for case in cases:
            path = self._path(case)
            if path is None or not case.unsaved:
                continue
            case.unsaved = False
            self.recall(case)
            with case.lock:
                content = json.dumps(case.trial.to_json()).encode()
            cache_files.write(path, content)
