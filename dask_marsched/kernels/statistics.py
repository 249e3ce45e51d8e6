"""Holds the state of each expression in an evaluator: its trial, backend and figures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dask_marsched.kernels.backend import Results
from dask_marsched.kernels.bound_expression import BoundExpression
from dask_marsched.kernels.tuner import REFERENCE, Trial

Run = Callable[[Sequence[Any]], Results]


class Case:
    """An expression on arrays of certain dtypes, layout and order of magnitude."""

    def __init__(self, first: BoundExpression, name: str) -> None:
        self.text = first.expression.text()
        self.dtypes = ", ".join(str(dtype) for _, dtype in first.inputs)
        #: Names its measurements on disk.
        self.name = name
        self.lock = threading.Lock()
        self.trial = Trial()
        self.ready: str | None = None  #: The backend's name once it is prepared
        #: Whether the backend has been asked to prepare, and has not answered yet.
        self.asked = False
        self.pending = True
        self.without_kernel = False  #: Whether the backend has answered that it has no kernel
        self.spent = 0.0  #: Seconds that chunks took that were timed
        #: Whether other processes have measured it, and whether this one has news for them.
        self.kept = False
        self.unsaved = False
        self.fixed: str | None = None  #: The candidate that was chosen, once both have been timed
        #: The backend, with the exception, if it has failed.
        self.failed: dict[str, str] = {}
        self.chosen = REFERENCE
        self.runs = 0
        self.fused = 0
        #: Seconds of processor time saved, and spent on preparing.
        self.saved = 0.0
        self.compiled = 0.0

    def report(self) -> dict[str, Any]:
        """Return its figures as plain values for JSON."""
        return {
            "text": self.text,
            "dtypes": self.dtypes,
            "backend": self.chosen,
            "runs": self.runs,
            "saved": self.saved,
            "compiled": self.compiled,
            "given_up": dict(self.failed),
        }


class Use:
    """A case with arrays of certain shapes."""

    def __init__(self, found: BoundExpression, case: Case) -> None:
        self.bound = found
        self.case = case
        self.run: Run | None = None
        #: Whether NumPy evaluates it, as the backend has no kernel for arrays of this layout.
        self.left = False


#: The figures that are added up over all cases, before there are any.
NOTHING: Mapping[str, Any] = {"saved": 0.0, "runs": 0, "fused": 0, "compiled": 0.0}


def totals(before: Mapping[str, Any], cases: Iterable[Case]) -> dict[str, Any]:
    """Return earlier figures plus those of some cases."""
    found = dict(before)
    for case in cases:
        for name in found:
            found[name] += getattr(case, name)
    return found
