"""A simulation's timeline as pandas' data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dask_marsched.simulation.report.timeline import Table, Timeline

if TYPE_CHECKING:
    import pandas

    from dask_marsched.simulation.report.report import SimulationReport

TABLES = ("tasks", "transfers", "memory")


def frame(report: SimulationReport, table: str) -> pandas.DataFrame:
    """Return a table as a data frame; see `SimulationReport.to_frame`."""
    if table not in TABLES:
        accepted = ", ".join(map(repr, TABLES))
        raise ValueError(f"table must be one of {accepted}, not {table!r}")
    timeline = report.kept_timeline("to_frame")
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_frame needs pandas, which is not installed: pip install 'dask-marsched[simulate]'",
            name=error.name,
        ) from error
    if table == "tasks":
        return pandas.DataFrame(_with_groups(timeline, timeline.tasks))
    if table == "transfers":
        rows = timeline.transfers.rows
        return pandas.DataFrame({name: rows[name] for name in rows.dtype.names or ()})
    made = pandas.DataFrame(_with_groups(timeline, timeline.changes))
    made["worker_bytes"] = made.groupby("worker")["bytes"].cumsum()
    made["cluster_bytes"] = made["bytes"].cumsum()
    return made


def _with_groups(timeline: Timeline, table: Table) -> dict[str, Any]:
    names, of_key = timeline.groups
    rows = table.rows
    columns: dict[str, Any] = {}
    for name in rows.dtype.names or ():
        if name == "key":
            keys = np.fromiter(timeline.keys, dtype=object, count=len(timeline.keys))
            columns["key"] = keys[rows["key"]]
            columns["group"] = np.array(names, dtype=object)[of_key[rows["key"]]]
        else:
            columns[name] = rows[name]
    return columns
