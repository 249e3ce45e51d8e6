"""Compares fused kernels with Dask's own evaluation of the same tasks, on one thread.

A chunk's task is timed as Dask made it and as kernels run it, in turn, after kernels are compiled
and the fastest backend is found.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks.kernels.expressions import EXPRESSIONS
from dask_marsched.config import Settings
from dask_marsched.host.kernels.task_runner import KernelRunner
from dask_marsched.kernels import backends
from dask_marsched.kernels.evaluator import Kernels, Means

MIB = 1 << 20
SIZES = (1, 8, 64)  # MiB
DTYPES = ("float32", "float64")
FORMS = ("elementwise", "mean")
#: Chunks that are evaluated before anything is timed: the backend gets its trial.
WARM_UP = 12
_REPEAT = {1: 25, 8: 9, 64: 3}


@dataclass(frozen=True)
class Comparison:
    """Times of one expression on one kind of chunk.

    Attributes
    ----------
    expression, dtype, mib, form
        What was evaluated: its name, the dtype, MiB of a chunk, elementwise or with a mean.
    stock, ours
        Seconds for a chunk, medians.
    backend
        What was chosen.
    temporaries, stock_temporaries
        Bytes of temporary arrays at most, as a share of the inputs' bytes.
    same
        Whether the results are the same to the last bit.
    """

    expression: str
    dtype: str
    mib: int
    form: str
    stock: float
    ours: float
    backend: str
    temporaries: float
    stock_temporaries: float
    same: bool

    @property
    def gain(self) -> float:
        """How many times faster than Dask's."""
        return self.stock / self.ours


class Chunk:
    """The task of one chunk of an array, with the chunks that it reads."""

    def __init__(self, expression: Any) -> None:
        (optimized,) = dask.optimize(expression)
        tasks = dict(optimized.__dask_graph__())
        # of an array of two chunks: what is done with both, as the end of a mean, is left out
        self._task = next(
            task
            for task in tasks.values()
            if hasattr(task, "func")
            and not any(tasks[name].dependencies for name in task.dependencies)
        )
        self._values = {name: tasks[name]({}) for name in self._task.dependencies}

    def run(self, wrap: Callable[[Any], Any]) -> Any:
        """Run the task, as ``wrap`` makes it."""
        return wrap(self._task)(self._values)


def chunk(name: str, form: str, dtype: str, mib: int) -> Chunk:
    """Return the task of an expression of random numbers between 0.5 and 1.5."""
    shape = (mib * MIB // np.dtype(dtype).itemsize // 1024, 1024)
    arrays = []
    for seed in range(3):
        values = (np.random.default_rng(seed).random(shape) + 0.5).astype(dtype)
        keys = {(f"input-{seed}", n, 0): values for n in (0, 1)}
        chunks = ((shape[0],) * 2, (1024,))
        made = da.Array(keys, f"input-{seed}", chunks, dtype=values.dtype, shape=None)
        arrays.append(made)
    expression = EXPRESSIONS[name](*arrays)
    return Chunk(expression if form == "elementwise" else expression.mean())


def make_runner(directory: Path | None, patience: float = 0.0) -> KernelRunner:
    """Return what a worker runs its tasks by."""
    found, missing = backends.make(directory)
    if "llvm" in missing:
        raise RuntimeError(f"nothing to measure: {missing['llvm']}")
    means = Means(found, directory, backends.identity())
    exact = Settings().kernels_exact
    kernels = Kernels(lambda: means, patience=patience, exact=exact)
    return KernelRunner(kernels, kernels.failures.caught)


def compare(name: str, form: str, dtype: str, mib: int, runner: KernelRunner) -> Comparison:
    """Time one expression."""
    tasks = chunk(name, form, dtype, mib)
    for number in range(WARM_UP):
        tasks.run(runner.wrap)
        if number == 0:
            runner.kernels.wait()
    stock: list[float] = []
    ours: list[float] = []
    for number in range(_REPEAT.get(mib, 3)):
        pairs = [(stock, as_it_is), (ours, runner.wrap)]
        for times, wrap in pairs if number % 2 else reversed(pairs):
            started = time.perf_counter()
            result = tasks.run(wrap)
            times.append(time.perf_counter() - started)
            del result
    report = runner.kernels.report()
    return Comparison(
        name, dtype, mib, form, statistics.median(stock), statistics.median(ours),
        ", ".join(sorted({one["backend"] for one in report["expressions"]})),
        _temporaries(tasks, runner.wrap, mib), _temporaries(tasks, as_it_is, mib),
        is_same(tasks.run(as_it_is), tasks.run(runner.wrap)),
    )  # fmt: skip


def as_it_is(task: Any) -> Any:
    """Return a task as Dask made it."""
    return task


def is_same(wanted: Any, found: Any) -> bool:
    """Whether two results are the same to the last bit; NaN is NaN."""
    if isinstance(wanted, dict):
        return wanted.keys() == found.keys() and all(is_same(wanted[k], found[k]) for k in wanted)
    wanted, found = np.asarray(wanted), np.asarray(found)
    number = ~np.isnan(wanted)
    signs = np.signbit(wanted) == np.signbit(found)
    return np.array_equal(wanted, found, equal_nan=True) and bool(np.all(signs | ~number))


def _temporaries(tasks: Chunk, wrap: Callable[[Any], Any], mib: int) -> float:
    """Return the peak of what is allocated beside the result, in chunks."""
    tracemalloc.start()
    try:
        result = tasks.run(wrap)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return max(0.0, peak - np.asarray(result).nbytes) / (mib * MIB)


def run(
    progress: Callable[[Comparison], None],
    *,
    names: Iterable[str] = tuple(EXPRESSIONS),
    sizes: Sequence[int] = SIZES,
    dtypes: Sequence[str] = DTYPES,
    forms: Sequence[str] = FORMS,
) -> list[Comparison]:
    """Time all expressions.

    Parameters
    ----------
    progress
        Is called with each comparison.
    names, sizes, dtypes, forms
        What to time.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        directory = backends.cache_directory(scratch)
        for name in names:
            for dtype in dtypes:
                for mib in sizes:
                    for form in forms:
                        runner = make_runner(directory)
                        found.append(compare(name, form, dtype, mib, runner))
                        runner.kernels.close()
                        progress(found[-1])
    return found


def cells(found: Sequence[Comparison]) -> list[list[str]]:
    """Return a table: for each expression the gains, elementwise and with a mean."""
    columns = list(dict.fromkeys((c.form, c.dtype, c.mib) for c in found))
    rows = [["expression", *(f"{form} {dtype} {mib} MiB" for form, dtype, mib in columns)]]
    for name in dict.fromkeys(c.expression for c in found):
        by = {(c.form, c.dtype, c.mib): c for c in found if c.expression == name}
        rows.append([name, *(f"{by[c].gain:.2f}" if c in by else "" for c in columns)])
    return rows


def summary_cells(found: Sequence[Comparison]) -> list[list[str]]:
    """Return a table of means and worst values."""
    titles = ["", "geometric mean", "least", "same", "temporaries of kernels at most", "stock's"]
    rows = [titles]
    for form in dict.fromkeys(c.form for c in found):
        own = [c for c in found if c.form == form]
        rows.append([
            form,
            f"{statistics.geometric_mean(c.gain for c in own):.2f}",
            f"{min(c.gain for c in own):.2f}",
            f"{sum(c.same for c in own)} of {len(own)}",
            f"{max((c.temporaries for c in own if 'llvm' in c.backend), default=0):.2%}",
            f"{max(c.stock_temporaries for c in own):.0%}",
        ])  # fmt: skip
    return rows
