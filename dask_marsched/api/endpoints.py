"""Lists the endpoints of the API: routes, checks and the description are made from this table."""

from __future__ import annotations

from typing import Any

from dask_marsched.api import answers
from dask_marsched.api.openapi import ROOT, Endpoint, document
from dask_marsched.api.parameters import Parameter, whole
from dask_marsched.core.operand import State
from dask_marsched.installation import __version__

GRAPH = Parameter("graph", whole(0, 10**15), "Number of a graph.", example=0)
LIMIT = Parameter("limit", whole(1, 1000), "Items of a page.", 100)
OFFSET = Parameter("offset", whole(0, 10**15), "Where to go on: `next` of the page before.", 0)
STATES = {"type": "string", "enum": [state.value for state in State]}
STATE = Parameter("state", STATES, "Those in this state only.")
TEXT = {"type": "string", "minLength": 1, "maxLength": 2000}
KEY = Parameter("key", TEXT, "The one whose key is this text, with its history.")
CELLS = Parameter("most", whole(1, 10_000), "Cells at most.", 2000)
ROWS = Parameter("most", whole(2, 128), "Rows and columns of the matrix at most.", 32)
WORKERS = Parameter("limit", whole(1, 1000), "Workers at most, the fullest.", 200)
EXPRESSIONS = Parameter("limit", whole(1, 1000), "Expressions at most.", 50)
OF_GRAPH = Parameter("graph", whole(0, 10**15), "Of this graph only.", example=0)
FORCE = Parameter("force", {"type": "boolean"}, "Also what other clients want.", False)


def _index(source: answers.Source) -> dict[str, Any]:
    return {
        "name": "dask_marsched",
        "version": __version__,
        "writable": source.writable(),
        "endpoints": [f"{e.method} {source.prefix}{ROOT}{e.path}" for e in ENDPOINTS],
    }


def _description(source: answers.Source) -> dict[str, Any]:
    return document(ENDPOINTS, __version__, source.prefix)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/", "The endpoints, and whether requests may change anything.", _index),
    Endpoint("GET", "/openapi.json", "This description.", _description),
    Endpoint(
        "GET",
        "/status",
        "Whether the plugin is active, and its counters since it was registered.",
        answers.status,
    ),
    Endpoint(
        "GET",
        "/graphs",
        "The last graphs, the newest first.",
        answers.graphs,
        (LIMIT, OFFSET),
    ),
    Endpoint("GET", "/graphs/{graph}", "One graph.", answers.graph, (GRAPH,)),
    Endpoint(
        "GET",
        "/graphs/{graph}/plan",
        "The picture of a graph's plan: cells of neighbouring operands, with their worker and "
        "states. While `ready` is false it is being laid out: ask again.",
        answers.plan,
        (GRAPH, CELLS),
    ),
    Endpoint(
        "POST",
        "/graphs/{graph}/cancel",
        "Cancel the wanted results of a graph.",
        answers.cancel,
        (GRAPH, FORCE),
    ),
    Endpoint(
        "GET",
        "/operands",
        "Operands and their states. `offset`, `next` and `total` count those that are looked at, "
        "not those that are listed: a page may be empty and yet not the last.",
        answers.operands,
        (GRAPH, STATE, KEY, LIMIT, OFFSET),
    ),
    Endpoint(
        "GET",
        "/counts",
        "Numbers of operands by state, now and over time, and causes of failures.",
        answers.counts,
        (OF_GRAPH,),
    ),
    Endpoint(
        "GET",
        "/quota",
        "Memory of the workers and what their quotas have promised.",
        answers.quota,
        (WORKERS,),
    ),
    Endpoint(
        "GET",
        "/store",
        "Where the results of the workers are: private, shared, mapped, on disk.",
        answers.store,
        (WORKERS,),
    ),
    Endpoint(
        "GET",
        "/transfers",
        "Bytes moved between workers, and an estimate of those that stock Dask would have moved "
        "for `graph` (by default the last one).",
        answers.transfers,
        (OF_GRAPH, ROWS),
    ),
    Endpoint(
        "GET",
        "/kernels",
        "Expressions that fused kernels evaluated on the workers.",
        lambda source, limit: source.observer.kernels(limit),
        (EXPRESSIONS,),
    ),
    Endpoint(
        "GET",
        "/faults",
        "Lost workers, failed operands and outages of the scheduler, and how they were handled.",
        lambda source: source.observer.faults(),
    ),
    Endpoint(
        "POST",
        "/restart",
        "Start the scheduler's process anew with its own command line; it needs a journal to go "
        "on. The answer is sent before; ask for `/` until it answers again.",
        answers.restart,
    ),
)
