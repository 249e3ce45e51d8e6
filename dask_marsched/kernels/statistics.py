"""What is known of an expression: how often and by what it was evaluated, the time that saved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dask_marsched.kernels.backend import Results
from dask_marsched.kernels.bound_expression import Setting
from dask_marsched.kernels.tuner import REFERENCE, Trial

Run = Callable[[Sequence[Any]], Results]


class Case:
    """An expression on arrays of one kind: dtypes, layout and size."""

    def __init__(self, first: Setting, name: str) -> None:
        self.text = first.expression.text()
        self.name = name
        self.lock = threading.Lock()
        self.trial = Trial()
        #: Backends that have been prepared.
        self.ready: list[str] = []
        self.pending = True
        #: Whether no backend has a kernel for it, though none has failed.
        self.without_kernel = False
        #: Whether the backends have been asked to prepare, and seconds that NumPy took before.
        self.asked = False
        self.spent = 0.0
        #: Whether other processes have measured it; whether they do not know yet what this one has.
        self.kept = False
        self.unsaved = False
        #: The backend that has been chosen, once enough is known of all of them.
        self.fixed: str | None = None
        #: Backends that have failed, with the exception.
        self.failed: dict[str, str] = {}
        self.runs = 0
        self.fused = 0
        self.saved = 0.0
        #: Seconds of processor time that backends took to prepare it.
        self.compiled = 0.0
        self.chosen = REFERENCE
        self.dtypes = ", ".join(str(dtype) for _, dtype in first.inputs)

    def report(self) -> dict[str, Any]:
        """Return what is told of it, as plain values for JSON."""
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

    def __init__(self, found: Setting, case: Case) -> None:
        self.setting = found
        self.case = case
        self.runs: dict[str, Run] = {}
        #: Whether it is left to NumPy: a backend has no kernel for arrays that lie like these.
        self.left = False


#: What is added up over all cases, before there are any.
NOTHING: Mapping[str, Any] = {"saved": 0.0, "runs": 0, "fused": 0, "compiled": 0.0}


def totals(before: Mapping[str, Any], cases: Iterable[Case]) -> dict[str, Any]:
    """Return figures of all cases together, those from before included."""
    found = dict(before)
    for case in cases:
        for name in found:
            found[name] += getattr(case, name)
    return found
