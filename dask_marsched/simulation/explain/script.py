"""Runs a script and explains what it would compute."""

from __future__ import annotations

import contextlib
import inspect
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dask_marsched.simulation.explain.computations import intercept_computations
from dask_marsched.simulation.explain.explain import explain
from dask_marsched.simulation.explain.explanation import Explanation
from dask_marsched.simulation.explain.stub_clients import RequestedSize, stub_clients
from dask_marsched.simulation.explain.write_interception import intercept_writes


class _Stop(BaseException):
    """Ends a script at its first computation; ``except Exception`` does not catch it."""


class _Failure(BaseException):
    """Carries an error of the explanation past the script's ``except Exception``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class ScriptError(Exception):
    """The script failed; ``report`` is its traceback as Python prints it."""

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.report = report


def explain_script(
    path: Path,
    script_arguments: Sequence[str],
    *,
    everything: bool,
    show: Callable[[str, Explanation], None],
    **arguments: Any,
) -> int:
    """Run a script, explain what it computes with Dask, and return the number of computations.

    No cluster is started. The first computation is explained instead of computed, and ends the run;
    with ``everything``, local threads compute and all are explained. Writing a collection counts as
    a computation and touches no file. ``arguments`` of `explain` take precedence over the cluster
    that the script asks for. A ScriptError carries the script's exception; SystemExit passes;
    TypeError, ValueError and RuntimeError say that a computation cannot be explained.
    """
    requested: RequestedSize = {}
    lock = threading.Lock()
    count = 0

    def before_compute(collections: list[Any], persist: bool) -> None:
        nonlocal count
        with lock:
            if everything or not count:
                count += 1
                verb = "persisted" if persist else "computed"
                where = f"Computation {count}, {verb} in {_line(path)}"
                try:
                    explanation = explain(collections, persist=persist, **requested | arguments)
                except Exception as error:
                    raise _Failure(error) from error
                show(where, explanation)
        if not everything:
            raise _Stop

    writing = contextlib.nullcontext() if everything else intercept_writes()
    try:
        with (
            _script_environment(path, script_arguments),
            stub_clients(requested, as_default=not everything),
            writing,
            intercept_computations(before_compute),
        ):
            _run(str(path))
    except _Stop:
        pass
    except _Failure as failure:
        raise failure.error from None
    return count


def _line(path: Path) -> str:
    """Return the innermost line of the script that is running."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename == str(path):
            return f"line {frame.f_lineno} of {path.name}"
        frame = frame.f_back
    return path.name


def _run(path: str) -> None:
    try:
        runpy.run_path(path, run_name="__main__")
    except Exception as error:
        trace = error.__traceback__  # from the script's first line on
        while trace is not None and trace.tb_frame.f_code.co_filename != path:
            trace = trace.tb_next
        report = "".join(traceback.format_exception(type(error), error, trace))
        raise ScriptError(report) from error


@contextlib.contextmanager
def _script_environment(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set ``sys.argv`` and ``sys.path`` as Python does for a script."""
    before = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.absolute().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before
