"""Evaluates expressions by a backend or by NumPy, whichever a trial on real chunks finds faster."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.kernels import numpy_backend
from dask_marsched.kernels.backend import Backend, UnsupportedError
from dask_marsched.kernels.bound_expression import BoundExpression, Signature, bind, signature
from dask_marsched.kernels.expression import Expression, NotUnderstoodError
from dask_marsched.kernels.measurements import Measurements
from dask_marsched.kernels.statistics import NOTHING, Case, Use, totals
from dask_marsched.kernels.tuner import REFERENCE, SAMPLES, Times

logger = logging.getLogger("dask_marsched")

#: Chunks of fewer elements are left to NumPy, whose overhead is as small as that of choosing.
LEAST_ELEMENTS = 8192
_SHOWN = 20  #: Expressions in `Kernels.report`
#: Cases, and uses of them, that are remembered. Each takes a few KiB, and holds machine code.
_MOST_CASES = 512
_MOST_USES = 2048


class Means(NamedTuple):
    """The backend of `Kernels`, and the place of its measurements."""

    backend: Backend | None
    directory: Path | None  #: where measurements are kept
    identity: str  #: the machine and the versions of libraries, for which measurements hold


class Kernels:
    """Evaluates expressions by the faster of NumPy and a backend.

    ``means`` is called once NumPy has spent ``patience`` seconds on all expressions together. Until
    then no backend is imported, no file is read and no thread is started, which shorter programs
    would not profit from. An expression is compiled once NumPy has spent ``patience`` on it, or if
    it was compiled before. ``clock`` returns this thread's processor time in seconds.
    """

    def __init__(
        self,
        means: Callable[[], Means],
        *,
        patience: float,
        exact: bool = True,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.backend: Backend | None = None
        self.exact = exact
        self.failures = Counters()
        self._measurements = Measurements(None, "")
        self._clock = clock
        self._patience = patience
        self._means = means
        self._spent = 0.0
        #: The cases seen so far while `means` has not been called; None from then on.
        self._asleep: list[tuple[Case, BoundExpression]] | None = []
        self._lock = threading.Lock()
        self._cases: dict[Any, Case] = {}
        #: Totals of cases that were forgotten.
        self._before: Mapping[str, Any] = NOTHING
        self._uses = lru_cache(_MOST_USES)(self._new_use)
        # Of the same priority as tasks: they would wait for a slower thread that has the
        # interpreter's lock.
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="marsched-kernels")
        self._closed = False
        if not patience:
            self.wake()

    def close(self) -> None:
        """Stop compiling; NumPy evaluates everything from now on."""
        self._closed = True
        self._compiler.shutdown(wait=True, cancel_futures=True)
        self._measurements.keep(list(self._cases.values()))
        self._uses.cache_clear()  # they keep machine code in memory

    def wait(self) -> None:
        """Wait until everything that was submitted is compiled."""
        with contextlib.suppress(RuntimeError):
            self._compiler.submit(int).result()

    def _submit(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the background; do nothing if another thread has closed this."""
        with contextlib.suppress(RuntimeError):
            self._compiler.submit(function, *args)

    def evaluate(
        self,
        expression: Expression,
        values: Sequence[Any],
        known: dict[int, Any] | None = None,
    ) -> list[Any]:
        """Return the results of an expression, one for each output.

        Results, warnings and errors are NumPy's; unless `exact`, floats may differ in the last
        bits. Nodes in ``known`` are not computed again; its entries that are None are filled in if
        NumPy computes them. Raises NotUnderstoodError for objects, strings and Python's numbers
        alone, to which NumPy's functions do something else than the operations of a program.
        """
        use = self._uses(expression, signature(values))
        if isinstance(use, str):
            raise NotUnderstoodError(use)
        if use is None or use.left or self._closed or np.geterr()["under"] != "ignore":
            return numpy_backend.evaluate(expression, values, known)
        case = use.case
        if expression.reduced and case.without_kernel:
            return self._reduced_by_numpy(expression, values, known)
        with case.lock:
            case.runs += 1
            name = case.fixed or case.trial.choose(case.ready)
        if name != REFERENCE:
            results = self._run(use, name, values)
            if results is not None:
                return results
        if case.fixed is not None:
            return numpy_backend.evaluate(expression, values, known)
        started = self._clock()
        found = numpy_backend.evaluate(expression, values, known)
        self._took(use, REFERENCE, self._clock() - started, repeated=False)
        return found

    def _reduced_by_numpy(
        self, expression: Expression, values: Sequence[Any], known: dict[int, Any] | None
    ) -> list[Any]:
        """Evaluate the elements, by a kernel if there is one, and reduce them by NumPy."""
        known = {} if known is None else known
        if any(value is not None for value in known.values()) or expression.reduces_inputs:
            return numpy_backend.evaluate(expression, values, known)
        evaluated = self.evaluate(expression.elementwise, values)
        for output, value in zip(expression.outputs, evaluated, strict=True):
            if output.node in known:
                known[output.node] = value
        return [
            numpy_backend.reduce(expression, output, value)
            for output, value in zip(expression.outputs, evaluated, strict=True)
        ]

    def _run(self, use: Use, name: str, values: Sequence[Any]) -> list[Any] | None:
        """Evaluate by the backend; None if NumPy has to do it."""
        case = use.case
        started = self._clock() if case.fixed is None else None
        assert self.backend is not None
        try:
            if use.run is None:
                use.run = self.backend.prepare(use.bound, self.exact)
            found = use.run(values)
        except (OverflowError, FloatingPointError):
            return None  # a Python scalar that NumPy warns about or refuses
        except UnsupportedError:
            use.left = True
            return None
        except Exception as error:
            self._give_up(case, name, error)
            return None
        repeat = found.doubtful
        if found.raised:
            wanted = {flag: str(what) for flag, what in np.geterr().items()}
            repeat = repeat or any(wanted[flag] != "ignore" for flag in found.raised)
        if started is None:
            self._ran(use, name, repeated=repeat)
        else:
            self._took(use, name, self._clock() - started, repeated=repeat)
        return None if repeat else found.values

    def wake(self) -> None:
        """Get the backend, and look up the measurements of all cases seen so far."""
        if self._asleep is None:
            return
        self.backend, directory, identity = self._means()
        self._measurements = Measurements(directory, identity)
        with self._lock:
            seen, self._asleep = self._asleep or [], None
        for case, first in seen:
            self._measurements.recall(case)
            with case.lock:
                case.asked = case.kept or case.spent >= self._patience
            self._begin(case, first)

    def _new_use(self, expression: Expression, found: tuple[Signature, ...]) -> Use | str | None:
        """Return a use; None for small chunks; the reason if the caller has to evaluate it."""
        try:
            made = bind(expression, found)
        except NotUnderstoodError as reason:
            return str(reason)
        if made.elements < LEAST_ELEMENTS:
            return None
        size = made.elements.bit_length() // 2
        layout = (made.layout.mode, made.layout.steps.lower())
        key = (made.expression, made.typed.types, layout, size, self.exact)
        with self._lock:
            case = self._cases.get(key)
            new = case is None
            if case is None:
                if len(self._cases) >= _MOST_CASES:
                    self._forget()
                case = self._cases[key] = Case(made, repr(key))
                if self._asleep is not None:
                    self._asleep.append((case, made))
                    return Use(made, case)
                self._measurements.recall(case)
                case.asked = case.kept or not self._patience
        if new and case.kept and self._prepares_quickly(case, made):
            self._prepare(case, made)  # so that the first chunk can run by its kernel
        elif new and not self._closed:
            self._submit(self._begin, case, made)
        return Use(made, case)

    def _forget(self) -> None:
        """Forget all cases but their totals. Those in use are soon known again."""
        cases = list(self._cases.values())
        self._before = totals(self._before, cases)
        self._cases.clear()
        self._uses.cache_clear()
        self._submit(self._measurements.keep, cases)

    def _prepares_quickly(self, case: Case, first: BoundExpression) -> bool:
        """Whether preparing a case takes no time."""
        backend = self.backend
        if backend is None or not case.trial.worth_a_try(backend.name):
            return True
        return backend.prepares_quickly(first, self.exact)

    def _begin(self, case: Case, first: BoundExpression) -> None:
        """Prepare a case at once if that pays or takes no time."""
        if case.asked or self._prepares_quickly(case, first):
            with case.lock:
                case.asked = True
            self._prepare(case, first)

    def _prepare(self, case: Case, first: BoundExpression) -> None:
        """Have the backend prepare a case, unless it is known to be slower."""
        if not case.pending or self._closed:
            return
        backend = self.backend
        if backend is not None and case.trial.worth_a_try(backend.name):
            started = self._clock()
            try:
                backend.prepare(first, self.exact)
            except UnsupportedError:
                case.without_kernel = True
            except Exception as error:
                self._give_up(case, backend.name, error)
            else:
                with case.lock:
                    case.ready = backend.name
            case.compiled += self._clock() - started
        case.pending = False

    def _give_up(self, case: Case, name: str, error: Exception) -> None:
        self.failures.caught(f"kernel.{name}", error)
        with case.lock:
            first = not case.failed
            case.failed[name] = f"{type(error).__name__}: {error}"
            case.fixed = case.ready = None
        if first:
            logger.warning("%s gives up on %s: %s", name, case.text, error)

    def _took(self, use: Use, name: str, seconds: float, *, repeated: bool) -> None:
        """Record a chunk that was timed."""
        case, elements = use.case, use.bound.elements
        with case.lock:
            times = case.trial.times.setdefault(name, Times())
            if name != REFERENCE or times.samples < SAMPLES or not case.kept:
                times.take(seconds / elements, repeated)
            reference = case.trial.times.get(REFERENCE)
            case.fused += name != REFERENCE and not repeated
            if name != REFERENCE and reference is not None:
                case.saved += (0.0 if repeated else reference.best * elements) - seconds
            case.chosen = case.trial.faster(case.ready)
            settled = not case.pending and case.trial.settled(case.ready)
            case.fixed = case.chosen if settled else None
            case.spent += seconds
            ask = not case.asked and case.spent >= self._patience and not self._closed
            ask = ask and self._asleep is None
            case.asked = case.asked or ask
            # measurements of a program of a few chunks help the next one
            keep = not case.pending and not case.unsaved and not self._closed
            case.unsaved = case.unsaved or not case.pending
        if self._asleep is not None:
            before, self._spent = self._spent, self._spent + seconds
            if before < self._patience <= self._spent:
                self._submit(self.wake)
        if ask:
            self._submit(self._prepare, case, use.bound)
        if keep:
            self._submit(self._measurements.keep, [case])

    def _ran(self, use: Use, name: str, *, repeated: bool) -> None:
        """Record a chunk that was not timed, as the choice is made."""
        case, elements = use.case, use.bound.elements
        with case.lock:
            times, reference = case.trial.times[name], case.trial.times.get(REFERENCE, Times())
            times.runs += 1
            times.repeated += repeated
            case.fused += not repeated
            own = times.best if repeated else times.best - reference.best
            case.saved -= own * elements
            if repeated:
                case.chosen = case.fixed = case.trial.faster(case.ready)

    def report(self) -> dict[str, Any]:
        """Return figures of the evaluated expressions as plain values for JSON.

        ``fused`` counts the chunks that NumPy did not evaluate, of all ``runs``. ``saved`` and
        ``compiled`` are seconds of processor time: how many more NumPy would have taken, and how
        many preparing took. ``expressions`` has the same figures for those that matter most.
        """
        with self._lock:
            cases, before = list(self._cases.values()), self._before
        cases.sort(key=lambda case: -abs(case.saved))
        return {
            **totals(before, cases),
            "backends": [] if self.backend is None else [self.backend.name],
            "exceptions": dict(self.failures.exceptions),
            "expressions": [case.report() for case in cases[:_SHOWN]],
        }
