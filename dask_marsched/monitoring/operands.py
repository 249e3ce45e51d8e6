"""Returns the states of a scheduler's operands: `operands`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

import dask
import distributed
from dask.core import flatten
from dask.typing import Key

from dask_marsched.core.operand import State, StateChange
from dask_marsched.core.plain_values import plain
from dask_marsched.host.client.open_clients import require_open
from dask_marsched.host.scheduler import operand_states as host
from dask_marsched.host.scheduler.worker_queries import OperandDetails, ask_workers
from dask_marsched.monitoring.executions import Executions


@dataclasses.dataclass(frozen=True)
class Operands:
    """States of operands; ``str()`` of it is a text for people.

    Attributes
    ----------
    counts : dict
        Number of operands by name of their state, on the scheduler or in the graph asked for.
    rows : list of dict
        The operands asked for: ``key``, ``state``, ``worker`` (that runs it or holds its result),
        ``nbytes`` (of the result, None before it exists), ``priority``, ``retries`` left,
        ``cause`` (key of the operand that failed first), ``execution`` (the last one remembered:
        ``worker``, ``sent`` and the seconds of its phases ``waiting``, ``loading``,
        ``calculating``, ``storing``).
    history : list of dict
        Transitions of the operand asked for by ``key``: ``state``, ``time``, ``dask`` (states of
        the task before and after), ``stimulus``.
    graphs : list of dict
        The last graphs: ``number``, ``client``, ``arrived``, number of new ``operands``, number of
        ``wanted`` results and how many of these are ``ready``, have ``failed`` or are ``gone``.
    """

    counts: dict[str, int]
    rows: list[dict[str, Any]]
    history: list[dict[str, Any]]
    graphs: list[dict[str, Any]]

    def to_json(self) -> str:
        """Return all attributes as JSON, with keys of operands as text."""
        found = dataclasses.asdict(self)
        rows = [with_text_keys(row) for row in found["rows"]]
        return json.dumps(plain({**found, "rows": rows}), allow_nan=False)

    def __str__(self) -> str:
        lines = ["  ".join(f"{name} {count}" for name, count in self.counts.items() if count)]
        lines += [f"{row['state']:<12}{row['key']}  {row['worker'] or ''}" for row in self.rows]
        if self.history:
            start = self.history[0]["time"]
            lines += [f"{step['time'] - start:+10.3f} s  {step['state']}" for step in self.history]
        return "\n".join(lines) or "no operands"


def operands(
    client: distributed.Client,
    *,
    key: Key | None = None,
    state: str | State | None = None,
    graph: Any = None,
    most: int = 100,
) -> Any:
    """Return the states of the operands of a scheduler.

    They are derived from Dask's own state, with or without the plugin; dask_marsched must be
    installed on the scheduler. Executions and graphs are known since the plugin was registered.

    Parameters
    ----------
    client : distributed.Client
        A client.
    key
        Return this operand, with its history.
    state : str or State, optional
        List operands in this state only.
    graph
        Count and list the operands of one graph: a collection or futures that were submitted, or
        the ``number`` of one of `Operands.graphs`.
    most : int
        Number of operands to list at most.

    Returns
    -------
    Operands
        For an asynchronous client an awaitable of it.

    Raises
    ------
    TypeError
        ``client`` is not a client, or ``graph`` is none of these.
    distributed.client.ClosedClientError
        The client is closed.
    ValueError
        The state does not exist.

    Examples
    --------
    >>> print(dask_marsched.operands(client, state="running"))  # doctest: +SKIP
    """
    require_open(client, "operands")
    if state is not None and not isinstance(state, State):
        try:
            state = State(str(state).lower())
        except ValueError:
            names = ", ".join(one.value for one in State)
            raise ValueError(f"there is no state {state!r}; states are {names}") from None
    number, wanted = graph_keys(graph) if graph is not None else (None, None)
    return client.sync(_operands, client, (key, state, number, wanted, most))


def graph_keys(graph: Any) -> tuple[int | None, list[Key] | None]:
    """Return the number of a graph, or the keys of its results; raise TypeError for others."""
    if isinstance(graph, int) and not isinstance(graph, bool):
        return graph, None
    keys: list[Key] = []
    for item in graph if isinstance(graph, (list, tuple, set)) else [graph]:
        if isinstance(item, distributed.Future):
            keys.append(item.key)
        elif dask.is_dask_collection(item):
            keys += flatten(item.__dask_keys__())
        else:
            raise TypeError(f"a graph is a number, a collection or futures, not {item!r}")
    return None, keys


async def _operands(client: distributed.Client, question: tuple[Any, ...]) -> Operands:
    run: Any = client.run_on_scheduler
    return Operands(**await run(_answer, *question))


async def _answer(
    key: Key | None,
    state: State | None,
    number: int | None,
    wanted: Iterable[Any] | None,
    most: int,
    dask_scheduler: Any = None,
) -> dict[str, Any]:
    """Return the attributes of `Operands`; runs on the scheduler."""
    plugin = dask_scheduler.plugins.get("marsched")
    executions: Executions = getattr(plugin, "executions", None) or Executions()
    if number is not None:
        wanted = next((g.wanted for g in executions.graphs if g.number == number), ())
    if key is not None:
        tasks = [ts] if (ts := dask_scheduler.tasks.get(key)) else []
    elif wanted is not None:
        tasks = await host.operands_of(dask_scheduler, wanted)
    else:
        tasks = list(dask_scheduler.tasks.values())
    kept: set[Key] = getattr(plugin, "kept", set)()
    retrying: set[Key] = getattr(plugin, "retrying", set)()
    known = await ask_workers(dask_scheduler, kept, retrying)
    counts, rows = await host.count_operands(tasks, state, most, known)
    ending = _cancelling(known, dask_scheduler.tasks, key, wanted)
    counts[State.CANCELLING] = len(ending)
    shown = [] if state not in (None, State.CANCELLING) else ending[: most - len(rows)]
    steps = [] if key is None else host.operand_history(dask_scheduler, key)
    return {
        "counts": {one.value: counts[one] for one in State},
        "rows": [row(ts, own, executions) for ts, own in rows] + shown,
        "history": history(steps),
        "graphs": [_graph(graph, dask_scheduler.tasks) for graph in executions.graphs],
    }


def _cancelling(
    known: OperandDetails, tasks: Mapping[Key, Any], key: Key | None, wanted: Iterable[Any] | None
) -> list[dict[str, Any]]:
    """Return rows for the operands being interrupted, which the scheduler has forgotten."""
    asked = None if key is None and wanted is None else {key, *(wanted or ())}
    rows: list[dict[str, Any]] = []
    for worker, keys in sorted(known.interrupted.items()):
        for own in keys:
            ts = tasks.get(own)
            runs_again = ts is not None and ts.processing_on is not None
            if not runs_again and (asked is None or own in asked):
                fields = dict.fromkeys(("nbytes", "retries", "cause", "execution"))
                found = {"key": own, "state": State.CANCELLING.value, "worker": worker}
                rows.append({**found, "priority": [], **fields})
    return rows


def history(steps: Iterable[StateChange]) -> list[dict[str, Any]]:
    """Return the transitions of an operand as plain values."""
    return [
        {**dataclasses.asdict(step), "state": step.state.value, "dask": list(step.dask)}
        for step in steps
    ]


def row(ts: Any, state: State, executions: Executions) -> dict[str, Any]:
    """Return one of `Operands.rows`."""
    worker = ts.processing_on or next(iter(ts.who_has or ()), None)
    last = executions.of(ts.key)
    return {
        "key": ts.key,
        "state": state.value,
        "worker": worker.address if worker is not None else None,
        "nbytes": ts.nbytes if ts.nbytes >= 0 else None,
        "priority": list(ts.priority or ()),
        "retries": ts.retries,
        "cause": ts.exception_blame.key if ts.exception_blame is not None else None,
        "execution": None if last is None else dataclasses.asdict(last),
    }


def with_text_keys(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its keys as text, for JSON."""
    cause = row["cause"]
    return {**row, "key": str(row["key"]), "cause": None if cause is None else str(cause)}


def _graph(graph: Any, tasks: dict[Key, Any]) -> dict[str, Any]:
    states = [tasks[key].state if key in tasks else "forgotten" for key in graph.wanted]
    return {
        "number": graph.number,
        "client": graph.client,
        "arrived": graph.arrived,
        "operands": graph.operands,
        "wanted": len(states),
        "ready": states.count("memory"),
        "failed": states.count("erred"),
        "gone": states.count("forgotten"),
    }
