"""Compares real runs of workloads with the digital twin's."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client

from dask_marsched.bench import runner
from dask_marsched.bench.cluster import BenchCluster, Setting
from dask_marsched.bench.metrics import Measurement, geometric_mean, median
from dask_marsched.bench.report import MIB, Cells
from dask_marsched.bench.workloads import Workload
from dask_marsched.simulation import simulate
from dask_marsched.simulation.costs.recording import Recording, record

AXES = ("moved", "managed", "seconds")
_TITLES = {"moved": "moved MiB", "managed": "managed MiB", "seconds": "seconds"}
#: How far the twin may be off for one workload, and its geometric mean over all of them.
BARS = {"moved": (0.10, None), "managed": (0.15, 0.05), "seconds": (0.25, None)}
#: Bytes moved in reality from which on the bar on them applies.
MOVING = 25 * MIB
#: What the twin knows of durations and sizes: those of the real run, or what the graph tells.
SOURCES = ("recording", "graph")
#: The twin's runs differ as real ones do; for each real run the median over these counts.
SEEDS = range(3)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A run of a workload under a policy, or the medians of several, and what the twin says.

    Attributes
    ----------
    workload, policy : str
        What ran, and under what.
    repetition : int or None
        From 0; None for the medians.
    real, twin : dict of str to float
        ``moved`` and ``managed`` (bytes) and ``seconds``; empty where one failed.
    error : str or None
        Why there is nothing to compare.
    source : str
        What the twin knows, one of `SOURCES`.
    """

    workload: str
    policy: str
    repetition: int | None
    real: dict[str, float] = dataclasses.field(default_factory=dict)
    twin: dict[str, float] = dataclasses.field(default_factory=dict)
    error: str | None = None
    source: str = SOURCES[0]

    def ratio(self, axis: str) -> float | None:
        """Return what the twin says divided by what happened; None where no bar applies."""
        real, twin = self.real.get(axis), self.twin.get(axis)
        if not real or twin is None or (axis == "moved" and real < MOVING):
            return None
        return twin / real

    def misses(self) -> tuple[str, ...]:
        """Return the axes on which the twin is further off than its bar."""
        ratios = {axis: self.ratio(axis) for axis in AXES}
        return tuple(
            axis
            for axis, ratio in ratios.items()
            if ratio is not None and abs(ratio - 1) > BARS[axis][0]
        )


def medians(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return for each workload, policy and source the medians over the runs that did not fail.

    A run is never the same twice: what the bars are about is where runs tend to be.
    """
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for c in comparisons:
        groups.setdefault((c.workload, c.policy, c.source), []).append(c)
    merged = []
    for (workload, policy, source), group in groups.items():
        good = [c for c in group if c.error is None]
        axes = AXES if good else ()
        real = {axis: median(c.real[axis] for c in good) or 0.0 for axis in axes}
        twin = {axis: median(c.twin[axis] for c in good) or 0.0 for axis in axes}
        error = None if good else group[0].error
        merged.append(Comparison(workload, policy, None, real, twin, error, source))
    return merged


class RecordedCluster(BenchCluster):
    """A cluster whose runs are recorded, and where nothing runs besides that the twin lacks.

    Attributes
    ----------
    recordings : list
        Of every run that did not fail: the measurement, the recording, and the collections, built
        again. Some depend on whether there is a cluster, as those that are rechunked.
    """

    measures_pss = False

    def __init__(self, policy: str, setting: Setting, chosen: tuple[Workload, ...]) -> None:
        super().__init__(policy, setting, chosen)
        self.recordings: list[tuple[Measurement, Recording, list[Any]]] = []

    def attempt(self, client: Client, workload: Workload, repetition: int) -> Measurement:
        """Run a workload once, measure and record it."""
        with record(client) as recording:
            measurement = super().attempt(client, workload, repetition)
        collections = list(workload.build(self.setting.parameters))
        self.recordings.append((measurement, recording, collections))
        return measurement


def run(
    chosen: tuple[Workload, ...],
    policies: Sequence[str],
    repeat: int,
    setting: Setting,
    progress: Callable[[Measurement], None] = lambda _: None,
) -> list[Comparison]:
    """Run workloads for real, then in the twin with the recorded costs.

    Parameters
    ----------
    chosen, policies, repeat, setting, progress
        As for `runner.run`.

    Returns
    -------
    list of Comparison
        In the order of the runs; failed ones included.
    """
    clusters: list[RecordedCluster] = []

    def open_it(policy: str, setting: Setting, chosen: tuple[Workload, ...]) -> RecordedCluster:
        clusters.append(RecordedCluster(policy, setting, chosen))
        return clusters[-1]

    openers: dict[str, runner.Opener] = dict.fromkeys(policies, open_it)
    outcome = runner.run(chosen, policies, repeat, setting, progress, openers)
    recorded = {
        id(m): (recording, collections)
        for cluster in clusters
        for m, recording, collections in cluster.recordings
    }
    by_name = {workload.name: workload for workload in chosen}
    comparisons = []
    for m, source in itertools.product(outcome.measurements, SOURCES):
        compared = Comparison(m.workload, m.policy, m.repetition, error=m.error, source=source)
        if m.error is None:
            recording, collections = recorded[id(m)]
            persists = by_name[m.workload].persist
            compared = _compared(compared, m, recording, [] if persists else collections)
        comparisons.append(compared)
    return comparisons


def _compared(
    compared: Comparison, m: Measurement, recording: Recording, collections: list[Any]
) -> Comparison:
    # Both makespans begin when the scheduler has the tasks: to make and to send them is no matter
    # of placement.
    real = {"moved": float(m.moved or 0), "managed": float(m.managed or 0)}
    real["seconds"] = recording.makespan
    compared = dataclasses.replace(compared, real=real)
    if not collections:
        return dataclasses.replace(compared, error="results that are persisted are not simulated")
    gc.collect()
    try:
        reports = [
            simulate(
                collections,
                policy=m.policy.partition("#")[0],
                costs=recording if compared.source == "recording" else None,
                timeline=False,
                seed=seed,
                **recording.cluster,
            )
            for seed in SEEDS
        ]
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return dataclasses.replace(compared, error=f"in the twin: {reason}")
    found: dict[str, list[float]] = {
        "moved": [report.bytes_moved for report in reports],
        "managed": [report.peak_managed for report in reports],
        "seconds": [report.makespan for report in reports],
    }
    twin = {axis: float(median(values) or 0.0) for axis, values in found.items()}
    return dataclasses.replace(compared, twin=twin)


def cells(comparisons: Sequence[Comparison]) -> Cells:
    """Return the table of workloads and policies, its head first."""
    head = ["workload", "policy", "known by"]
    for axis in AXES:
        head += [_TITLES[axis], "twin", "x"]
    rows = [[*head, "verdict"]]
    for c in comparisons:
        row = [c.workload, c.policy, c.source]
        for axis in AXES:
            row += [_number(axis, c.real), _number(axis, c.twin), _ratio(c.ratio(axis))]
        misses = c.misses()
        verdict = c.error or ("off: " + ", ".join(misses) if misses else "ok")
        rows.append([*row, verdict])
    return rows


def summary_cells(comparisons: Sequence[Comparison]) -> Cells:
    """Return the table of geometric means and of the bars, its head first."""
    head = ["policy", "known by", "axis", "workloads", "within", "geomean x", "bar", "worst x"]
    rows = [[*head, "bar", "of", "verdict"]]
    columns = dict.fromkeys((c.policy, c.source) for c in comparisons)
    for policy, source in columns:
        for axis in AXES:
            found = {
                c.workload: ratio
                for c in comparisons
                if (c.policy, c.source) == (policy, source) and (ratio := c.ratio(axis)) is not None
            }
            if not found:
                continue
            mean = geometric_mean(found.values()) or 0.0
            worst = max(found, key=lambda name: abs(found[name] - 1))
            single, together = BARS[axis]
            met = abs(found[worst] - 1) <= single
            met &= together is None or abs(mean - 1) <= together
            rows.append(
                [
                    policy,
                    source,
                    _TITLES[axis].removesuffix(" MiB"),
                    str(len(found)),
                    str(sum(abs(ratio - 1) <= single for ratio in found.values())),
                    _ratio(mean),
                    "-" if together is None else f"1 ± {together:.2f}",
                    _ratio(found[worst]),
                    f"1 ± {single:.2f}",
                    worst,
                    "met" if met else "not met",
                ]
            )
    return rows


def to_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return all runs, and their medians, as a JSON-able dict."""
    return {
        name: [
            {
                **dataclasses.asdict(c),
                "ratios": {axis: c.ratio(axis) for axis in AXES},
                "misses": c.misses(),
            }
            for c in group
        ]
        for name, group in (("runs", comparisons), ("medians", medians(comparisons)))
    } | {
        "bars": {axis: {"single": one, "mean": mean} for axis, (one, mean) in BARS.items()},
    }


def _number(axis: str, values: dict[str, float]) -> str:
    if axis not in values:
        return "-"
    return f"{values[axis]:.2f}" if axis == "seconds" else f"{values[axis] / MIB:.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


NOTE = (
    "Medians over the repetitions, and for the twin over three seeds of each. x: the twin's "
    "number divided by the real one. known by recording: the twin knows the durations and sizes of "
    "the tasks from the real run beside it, and how slow its event loops were; by graph: it knows "
    "nothing of that run. within: how many are no further off than the bar. seconds: from the "
    "start of the first task to the end of the last one. "
    "Bytes count where more than 25 MiB move. managed: peak of the managed bytes of all workers "
    "together."
)
