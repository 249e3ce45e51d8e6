"""Turns the tables of a simulation's timeline into pandas data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dask_marsched.simulation.report.timeline import Table, Timeline

if TYPE_CHECKING:
    import pandas

TABLES = ("tasks", "transfers", "memory")


def data_frame(timeline: Timeline, table: str) -> pandas.DataFrame:
    """Return a table as a data frame; see `SimulationReport.to_frame`."""
    if table not in TABLES:
        accepted = ", ".join(map(repr, TABLES))
        raise ValueError(f"table must be one of {accepted}, not {table!r}")
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "to_frame needs pandas, which is not installed: pip install 'dask-marsched[simulate]'",
            name=error.name,
        ) from error
    if table != "memory":
        return pandas.DataFrame(_columns(timeline, getattr(timeline, table)))
    memory = pandas.DataFrame(_columns(timeline, timeline.changes))
    memory["worker_bytes"] = memory.groupby("worker")["bytes"].cumsum()
    memory["cluster_bytes"] = memory["bytes"].cumsum()
    return memory


def _columns(timeline: Timeline, table: Table) -> dict[str, Any]:
    """Return the columns of a table; numbers of keys become keys and their groups."""
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
