"""Chooses by forecasts into how many runs of units for each host a plan is cut.

Long runs keep results that meet on one host. But each host then holds results of its own (a front)
and may wait long for another's: means by month on 25 hosts of 4 workers, half a month in a run,
held 2.3 times as much as stock Dask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.dispatch_pace import SCHEDULER_TIME
from dask_marsched.policies.planning.forecast import Forecaster
from dask_marsched.policies.planning.host_shares import RUNS, cut_into_shares
from dask_marsched.policies.planning.plan_search import CHECKED, FAST_LINK, HARDLY_MORE

NOT_CUT = 0  #: A plan that is not cut: any worker opens the next unit.


def choose_runs(
    graph: OperandGraph,
    workers: Sequence[WorkerSlot],
    plan: Callable[[OperandGraph], list[Unit]],
    least: int = 1,
) -> int:
    """Choose into how many runs for each host, at least `least`, to cut a plan; or `NOT_CUT`.

    Among the numbers whose plan holds no more than stock Dask this is the lowest, or a higher one
    that holds clearly less and hardly moves more between hosts; else the one that holds least. Of a
    large graph the first operands are forecast, on fewer hosts.
    """
    part = graph.head(min(len(graph), CHECKED))
    some = _some_hosts(workers, len(part) / max(1, len(graph)))
    # The scheduler serves all workers, so it has less time for these.
    scheduler_time = SCHEDULER_TIME * len(workers) / len(some)
    threads, hosts = [w.nthreads or 1 for w in some], [w.host for w in some]
    run = Forecaster(part, threads, scheduler_time, hosts)
    most = run.stock(FAST_LINK).peak
    units = plan(part)
    peaks: dict[int, float] = {}
    best, fewest = None, math.inf
    for runs in [*(m for m in RUNS if m >= least), NOT_CUT]:
        cut = cut_into_shares(units, some, runs) if runs != NOT_CUT else units
        found = run.plan(cut, FAST_LINK)
        peaks[runs] = found.peak
        if found.between_hosts > HARDLY_MORE * fewest:
            break
        if found.peak <= most and (best is None or HARDLY_MORE * found.peak < peaks[best]):
            best, fewest = runs, min(fewest, found.between_hosts)
    return min(peaks, key=peaks.__getitem__) if best is None else best


def _some_hosts(workers: Sequence[WorkerSlot], share: float) -> list[WorkerSlot]:
    """Return the workers of the first hosts: a share of all, at least two."""
    hosts = list(dict.fromkeys(w.host for w in workers))
    chosen = set(hosts[: max(2, math.ceil(share * len(hosts)))])
    return [w for w in workers if w.host in chosen]
