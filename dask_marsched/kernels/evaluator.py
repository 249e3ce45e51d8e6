"""Evaluates expressions: chooses a backend, watches it, and falls back to NumPy."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.fallbacks.counters import Counters
from dask_marsched.kernels import numpy_backend
from dask_marsched.kernels.backend import Backend, UnsupportedError
from dask_marsched.kernels.bound_expression import Setting, Signature, setting, signature
from dask_marsched.kernels.expression import Expression, NotUnderstoodError, Output
from dask_marsched.kernels.measurements import Measurements
from dask_marsched.kernels.statistics import NOTHING, Case, Use, totals
from dask_marsched.kernels.tuner import REFERENCE, SAMPLES, Times

logger = logging.getLogger("dask_marsched")

#: Below so many elements NumPy's own overhead is as small as that of choosing.
LEAST = 8192
#: Expressions that `Kernels.report` names.
_SHOWN = 20
#: Cases that are known, and uses of them: these are a few KiB each, and with backends they keep
#: machine code in memory.
_MOST_CASES = 512
_MOST_USES = 2048

#: Of the thread that compiles.
_NICE = 5


@lru_cache(maxsize=1024)
def _elementwise(expression: Expression) -> Expression:
    """Return an expression without its reductions."""
    return Expression(expression.nodes, tuple(Output(o.node) for o in expression.outputs))


def _give_way() -> None:
    """Let this thread, which compiles, run when no other one wants to."""
    if sys.platform == "linux":  # elsewhere it were the whole process
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class Means(NamedTuple):
    """What expressions are evaluated by: see `Kernels`."""

    backends: Sequence[Backend]
    directory: Path | None
    identity: str


class Kernels:
    """Evaluates expressions by whichever backend is the fastest.

    Parameters
    ----------
    backends
        Those to choose from, beside NumPy.
    exact
        Whether results have to be NumPy's to the last bit.
    directory
        Where measurements are kept between runs; None to keep none.
    identity
        What measurements depend on: the machine, the versions of libraries.
    clock
        Seconds of processor time of this thread.
    patience
        Seconds that NumPy spends on an expression before it is compiled, unless it was before.
    late
        Returns backends, directory and identity in the place of those given, once NumPy has spent
        these seconds on all expressions together. Until then nothing is looked up, nor is there a
        thread: most programs that are shorter have nothing to gain.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        exact: bool = True,
        directory: Path | None = None,
        identity: str = "",
        clock: Callable[[], float] = time.thread_time,
        patience: float = 0.0,
        late: Callable[[], Means] | None = None,
    ) -> None:
        self.backends = {backend.name: backend for backend in backends}
        self.exact = exact
        self.failures = Counters()
        self._measurements = Measurements(directory, identity)
        self._clock = clock
        self._patience = patience
        self._late = late
        self._spent = 0.0
        #: Until it wakes: what has been seen.
        self._asleep: list[tuple[Case, Setting]] | None = None if late is None else []
        self._waking = threading.Lock()
        self._lock = threading.Lock()
        self._cases: dict[Any, Case] = {}
        #: What has been counted of cases that are not known any more.
        self._before: Mapping[str, Any] = NOTHING
        self._uses = lru_cache(_MOST_USES)(self._new_use)
        self._compiler = ThreadPoolExecutor(
            1, thread_name_prefix="marsched-kernels", initializer=_give_way
        )
        self._closed = False

    def close(self) -> None:
        """Compile nothing any more. What is evaluated from now on is left to NumPy."""
        self._closed = True
        self._compiler.shutdown(wait=True, cancel_futures=True)
        self._measurements.keep(list(self._cases.values()))
        self._uses.cache_clear()  # they keep machine code in memory

    def wait(self) -> None:
        """Wait until all that was to be compiled is compiled."""
        done = self._submit(int)
        if done is not None:
            done.result()

    def _submit(self, function: Callable[..., Any], *args: Any) -> Future[Any] | None:
        """Have something done in the background; nothing where there is no background any more.

        Threads evaluate while another one closes this, or the interpreter ends.
        """
        with contextlib.suppress(RuntimeError):
            return self._compiler.submit(function, *args)
        return None

    def evaluate(
        self,
        expression: Expression,
        values: Sequence[Any],
        known: dict[int, Any] | None = None,
    ) -> list[Any]:
        """Return the results of an expression, one for each output.

        Results, warnings and errors are those of NumPy; floats, unless `exact`, within the units in
        the last place that the documentation tells.

        Parameters
        ----------
        expression
            What is computed.
        values
            Its inputs.
        known
            Values of nodes, which NumPy need not compute again; those that are None are filled in
            where it is NumPy that computes them.

        Raises
        ------
        NotUnderstoodError
            If it is to be left to whoever asks: what operations do to objects, to strings or to
            Python's numbers alone is not what NumPy's functions of the same names do.
        """
        use = self._use(expression, values)
        if use is None or use.left or self._closed or np.geterr()["under"] != "ignore":
            return numpy_backend.evaluate(expression, values, known)
        case = use.case
        if expression.reduced and case.without_kernel:
            return self._written(expression, values, known)
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

    def _written(
        self, expression: Expression, values: Sequence[Any], known: dict[int, Any] | None
    ) -> list[Any]:
        """Return reductions that no backend computes as NumPy does: NumPy reduces what they write.

        What is known already need not be written.
        """
        known = {} if known is None else known
        if any(value is not None for value in known.values()):
            return numpy_backend.evaluate(expression, values, known)
        evaluated = self.evaluate(_elementwise(expression), values)
        for output, value in zip(expression.outputs, evaluated, strict=True):
            if output.node in known:
                known[output.node] = value
        return [
            numpy_backend.reduce(expression, output, value)
            for output, value in zip(expression.outputs, evaluated, strict=True)
        ]

    def _run(self, use: Use, name: str, values: Sequence[Any]) -> list[Any] | None:
        """Evaluate by a backend; None if NumPy has to do it."""
        case = use.case
        started = self._clock() if case.fixed is None else None
        try:
            run = use.runs.get(name)
            if run is None:
                run = use.runs[name] = self.backends[name].prepare(use.setting, self.exact)
            found = run(values)
        except (OverflowError, FloatingPointError):
            return None  # a Python scalar that NumPy has something to say about
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

    # -- what is known of an expression ----------------------------------------------------

    def _wake(self) -> None:
        """Begin to look up what is known, and to compile."""
        with self._waking:
            if self._asleep is None or self._late is None:
                return
            means = self._late()
            self.backends = {backend.name: backend for backend in means.backends}
            self._measurements = Measurements(means.directory, means.identity)
            with self._lock:
                seen, self._asleep = self._asleep, None
        for case, first in seen:
            self._measurements.recall(case)
            with case.lock:
                case.asked = case.kept or case.spent >= self._patience
            self._begin(case, first)

    def _use(self, expression: Expression, values: Sequence[Any]) -> Use | None:
        use = self._uses(expression, signature(values))
        if isinstance(use, str):
            raise NotUnderstoodError(use)
        return use

    def _new_use(self, expression: Expression, found: tuple[Signature, ...]) -> Use | str | None:
        """Return a use; None where NumPy is as fast as anything; else why it is not understood."""
        try:
            made = setting(expression, found)
        except NotUnderstoodError as reason:
            return str(reason)
        if made.elements < LEAST:
            return None
        size = made.elements.bit_length() // 2
        layout = (made.layout.mode, made.layout.steps.lower())
        key = (made.expression, made.typed.types, layout, size, self.exact)
        if self._asleep is not None and not self._patience:
            self._wake()
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
        if new and case.kept and self._at_hand(case, made):
            self._prepare(case, made)  # the first chunk is not left to NumPy
        elif new and not self._closed:
            self._submit(self._begin, case, made)
        return Use(made, case)

    def _forget(self) -> None:
        """Forget all cases but for their figures. What is in use is soon known again."""
        cases = list(self._cases.values())
        self._before = totals(self._before, cases)
        self._cases.clear()
        self._uses.cache_clear()
        self._submit(self._measurements.keep, cases)

    def _at_hand(self, case: Case, first: Setting) -> bool:
        wanted = case.trial.worth_a_try(self.backends)
        return all(self.backends[name].at_hand(first, self.exact) for name in wanted)

    def _begin(self, case: Case, first: Setting) -> None:
        """Prepare what is known to be worth it, or costs nothing, in the background."""
        at_hand = case.asked or self._at_hand(case, first)
        with case.lock:
            ask = at_hand or not case.asked
            case.asked = case.asked or at_hand
        if at_hand and ask:
            self._prepare(case, first)

    def _prepare(self, case: Case, first: Setting) -> None:
        """Prepare the backends for a case."""
        if not case.pending:
            return
        names = case.trial.worth_a_try(self.backends)
        # what has to be compiled comes last: chunks need not wait for it
        names.sort(key=lambda name: not self.backends[name].at_hand(first, self.exact))
        for name in names:
            if self._closed:
                return
            backend = self.backends[name]
            started = self._clock()
            try:
                backend.prepare(first, self.exact)
            except UnsupportedError as reason:
                with case.lock:
                    case.trial.given_up[name] = str(reason)
            except Exception as error:
                self._give_up(case, name, error)
            else:
                with case.lock:
                    case.ready.append(name)
            case.compiled += self._clock() - started
        case.pending = False
        case.without_kernel = not case.failed and case.trial.given_up.keys() == self.backends.keys()

    def _give_up(self, case: Case, name: str, error: Exception) -> None:
        self.failures.caught(f"kernel.{name}", error)
        with case.lock:
            first = name not in case.failed
            case.failed[name] = case.trial.given_up[name] = f"{type(error).__name__}: {error}"
            case.fixed = None
            if name in case.ready:
                case.ready.remove(name)
        if first:
            logger.warning("%s gives up on %s: %s", name, case.text, error)

    def _took(self, use: Use, name: str, seconds: float, *, repeated: bool) -> None:
        case, elements = use.case, use.setting.elements
        with case.lock:
            times = case.trial.times.setdefault(name, Times())
            if name != REFERENCE or times.samples < SAMPLES or not case.kept:
                times.take(seconds / elements, repeated)
            reference = case.trial.times.get(REFERENCE)
            case.fused += name != REFERENCE and not repeated
            if name != REFERENCE and reference is not None:
                case.saved += (0.0 if repeated else reference.best * elements) - seconds
            case.chosen = case.trial.fastest([*case.ready, REFERENCE])
            settled = not case.pending and case.trial.settled(case.ready)
            case.fixed = case.chosen if settled else None
            case.spent += seconds
            ask = not case.asked and case.spent >= self._patience and not self._closed
            ask = ask and self._asleep is None
            case.asked = case.asked or ask
            # what a program of a few chunks has learned is of use to the next one
            keep = not case.pending and not case.unsaved and not self._closed
            case.unsaved = case.unsaved or not case.pending
        if self._asleep is not None:
            before, self._spent = self._spent, self._spent + seconds
            if before < self._patience <= self._spent:
                self._submit(self._wake)
        if ask:
            self._submit(self._prepare, case, use.setting)
        if keep:
            self._submit(self._measurements.keep, [case])

    def _ran(self, use: Use, name: str, *, repeated: bool) -> None:
        """Take note of a chunk for which no time was taken, as the choice is made."""
        case, elements = use.case, use.setting.elements
        with case.lock:
            times, reference = case.trial.times[name], case.trial.times.get(REFERENCE, Times())
            times.runs += 1
            times.repeated += repeated
            case.fused += not repeated
            own = times.best if repeated else times.best - reference.best
            case.saved -= own * elements
            if repeated:
                case.chosen = case.fixed = case.trial.fastest([*case.ready, REFERENCE])

    # -- telling ---------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return what was evaluated by what, as plain values for JSON.

        Returns
        -------
        dict
            ``saved``, seconds of processor time that NumPy would have taken more; ``runs`` and
            ``fused``, chunks evaluated and those of them not by NumPy; ``expressions``, those
            that matter most, with ``text``, ``dtypes``, ``backend``, ``runs``, ``saved``,
            ``compiled`` (seconds of processor time spent on preparing it) and ``given_up``,
            backends that have failed on it, with the reason. ``compiled`` also of all together.
        """
        with self._lock:
            cases, before = list(self._cases.values()), self._before
        cases.sort(key=lambda case: -abs(case.saved))
        return {
            **totals(before, cases),
            "backends": list(self.backends),
            "exceptions": dict(self.failures.exceptions),
            "expressions": [case.report() for case in cases[:_SHOWN]],
        }
