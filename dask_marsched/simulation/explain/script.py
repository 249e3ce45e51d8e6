"""Explain what a script would compute, by running it."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dask_marsched.simulation.explain.computations import intercept_computations
from dask_marsched.simulation.explain.explain import explain
from dask_marsched.simulation.explain.explanation import Explanation
from dask_marsched.simulation.explain.stub_clients import RequestedCluster, stub_clients_active
from dask_marsched.simulation.explain.write_interception import intercept_writes


class _Stop(BaseException):
    """Ends a script at its first computation; none of its handlers of errors takes it."""


class _Failure(BaseException):
    """Carries an error of the explanation through the script's handlers of errors."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class ScriptError(Exception):
    """The script failed.

    Attributes
    ----------
    report : str
        The traceback, as Python prints it.
    """

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.report = report


class _Explainer:
    """Explains each computation that it is told of."""

    def __init__(
        self,
        path: Path,
        arguments: dict[str, Any],
        show: Callable[[str, Explanation], None],
        stop: bool,
    ) -> None:
        self.asked = RequestedCluster()
        self.count = 0
        self._path = str(path)
        self._arguments = arguments
        self._show = show
        self._stop = stop
        self._lock = threading.Lock()

    def __call__(self, collections: list[Any], persist: bool) -> None:
        with self._lock:
            if not (self._stop and self.count):
                self.count += 1
                verb = "persisted" if persist else "computed"
                where = f"Computation {self.count}, {verb} in {self._line()}"
                arguments = self._cluster() | self._arguments
                try:
                    explanation = explain(collections, persist=persist, **arguments)
                except Exception as error:
                    raise _Failure(error) from error
                self._show(where, explanation)
        if self._stop:
            raise _Stop

    def _cluster(self) -> dict[str, Any]:
        """Return what the script asked for, under the names of arguments."""
        asked = self.asked
        found = {
            "workers": asked.workers, "threads": asked.threads, "memory_limit": asked.memory_limit,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def _line(self) -> str:
        """Return where in the script this is: the innermost line of it that is being run."""
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_filename == self._path:
                return f"line {frame.f_lineno} of {Path(self._path).name}"
            frame = frame.f_back
        return Path(self._path).name


def explain_script(
    path: Path,
    script_arguments: Sequence[str],
    *,
    everything: bool,
    show: Callable[[str, Explanation], None],
    **arguments: Any,
) -> int:
    """Run a script, and explain what it computes with Dask.

    No cluster is started. The script runs unchanged up to its first computation, which is
    explained instead of computed and ends it; what writes arrays or frames counts as one, and
    touches no file.

    Parameters
    ----------
    path
        The script.
    script_arguments
        Its arguments.
    everything
        Go on: compute with local threads, and explain all computations.
    show
        Called with a heading and the explanation of each computation.
    **arguments
        Of `explain`. Those that are left out are those of the cluster that the script asks for.

    Returns
    -------
    int
        The number of computations.

    Raises
    ------
    ScriptError
        If the script raises an exception.
    TypeError, ValueError, RuntimeError
        If a computation cannot be explained.
    SystemExit
        If the script does, before anything is computed or with ``everything``.
    """
    explainer = _Explainer(path, arguments, show, stop=not everything)
    writing = contextlib.nullcontext() if everything else intercept_writes()
    try:
        with (
            _as_main(path, script_arguments) as module,
            stub_clients_active(explainer.asked, imagined=not everything),
            writing,
            intercept_computations(explainer),
        ):
            _run(path, module)
    except _Stop:
        pass
    except _Failure as failure:
        raise failure.error from None
    return explainer.count


def _run(path: Path, module: types.ModuleType) -> None:
    try:
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, module.__dict__)
    except Exception as error:
        raise ScriptError(_traceback(error, str(path))) from error


def _traceback(error: Exception, path: str) -> str:
    """Return the traceback from the script's first line on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


@contextlib.contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[types.ModuleType]:
    """Let a module be what Python makes of a script: ``__main__``, with its path and arguments."""
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    module.__dict__["__builtins__"] = __builtins__
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    sys.modules["__main__"] = module
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.absolute().parent))
    try:
        yield module
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before
