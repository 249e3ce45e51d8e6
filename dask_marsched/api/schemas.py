"""JSON Schemas of the API's answers."""

from __future__ import annotations

from typing import Any

from dask_marsched.core.operand import State

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
#: Seconds, bytes and the like that may have a fraction.
POSITIVE: Schema = {"type": "number", "minimum": 0}
TRUTH: Schema = {"type": "boolean"}
STATE: Schema = {"type": "string", "enum": [state.value for state in State]}


def maybe(schema: Schema) -> Schema:
    """Return the schema of what may also be null."""
    return {**schema, "type": [schema["type"], "null"]}


def listing(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def mapping(values: Schema) -> Schema:
    """Return the schema of an object whose names are not known beforehand."""
    return {"type": "object", "additionalProperties": values}


def record(**fields: Schema) -> Schema:
    """Return the schema of an object with these fields, all of them there, and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def page(items: Schema, **fields: Schema) -> Schema:
    """Return the schema of a page of a list.

    ``next`` is the offset of the following page, null on the last one.
    """
    return record(items=listing(items), total=COUNT, next=maybe(COUNT), **fields)


def table(about: str) -> Schema:
    """Return the schema of an object whose fields depend on what is switched on."""
    return {"type": "object", "description": about}


ERROR = record(error=record(status=COUNT, message=TEXT, parameter=maybe(TEXT)))

EXECUTION = record(
    worker=TEXT,
    sent=NUMBER,
    waiting=POSITIVE,
    loading=POSITIVE,
    calculating=NUMBER,
    storing=POSITIVE,
)

OPERAND = record(
    key=TEXT,
    state=STATE,
    worker=maybe(TEXT),
    nbytes=maybe(COUNT),
    priority=listing(maybe(NUMBER)),
    retries=COUNT,
    cause=maybe(TEXT),
    execution={"anyOf": [EXECUTION, {"type": "null"}]},
)

STEP = record(state=STATE, time=NUMBER, dask=listing(TEXT), stimulus=TEXT)

STATUS = {
    "type": "object",
    "properties": {
        "active": TRUTH,
        "reason": maybe(TEXT),
        "policies": mapping(TEXT),
        "graphs_planned": COUNT,
        "operands_planned": COUNT,
        "operands_placed": COUNT,
        "exact_sizes": COUNT | {"type": "number", "maximum": 1},
        "exceptions": mapping(COUNT),
        "last_exception": maybe(TEXT),
        "versions": mapping(TEXT),
        "scheduler": TEXT,
        "workers": COUNT,
    },
    "required": ["active", "reason", "policies", "exceptions", "versions", "scheduler", "workers"],
}

COUNTS = record(**{state.value: COUNT for state in State})

PLANNED = record(
    planned=NUMBER,
    finished=maybe(NUMBER),
    done=TRUTH,
    operands=COUNT,
    units=COUNT,
    initial=COUNT,
    replanned=COUNT,
    policies=mapping(TEXT),
    counts=COUNTS,
    moved=POSITIVE,
)

GRAPH = record(
    number=COUNT,
    client=TEXT,
    arrived=NUMBER,
    operands=COUNT,
    wanted=COUNT,
    plan={"anyOf": [PLANNED, {"type": "null"}]},
)

#: States that are followed over time.
_FOLLOWED = ("unscheduled", "ready", "running", "finished", "freed", "fatal", "cancelled")

PLAN = record(
    graph=COUNT,
    operands=COUNT,
    units=COUNT,
    ready=TRUTH,
    share={"type": "number", "minimum": 0, "maximum": 1},
    columns=COUNT,
    rows=COUNT,
    aggregated=TRUTH,
    depth=COUNT,
    workers=listing(TEXT),
    cells={
        "type": "object",
        "properties": {
            "column": listing(COUNT),
            "row": listing(COUNT),
            "operands": listing(COUNT),
            "worker": listing({"type": "integer", "minimum": -1}),
            "worker_share": listing({"type": "number", "minimum": 0, "maximum": 1}),
            **{name: listing(COUNT) for name in _FOLLOWED},
        },
        "additionalProperties": False,
    },
)


def series(*names: str) -> Schema:
    """Return the schema of values over time: lists of one length."""
    return record(time=listing(NUMBER), **{name: listing(NUMBER) for name in names})


OPERAND_COUNTS = record(
    counts=COUNTS,
    series=series(*_FOLLOWED),
    causes=listing(record(state=TEXT, operand=TEXT, cause=TEXT, count=COUNT)),
)

_WORKER = {
    "worker": TEXT,
    "name": TEXT,
    "host": TEXT,
    "status": TEXT,
    "last_seen": NUMBER,
    "limit": maybe(COUNT),
}

QUOTA = record(
    on=TRUTH,
    thresholds=mapping(maybe(NUMBER)),
    workers=listing(
        record(
            **_WORKER,
            **dict.fromkeys(
                ("quota", "used", "promised", "queued", "deferrals", "forced", "evictions"),
                maybe(COUNT),
            ),
        )
    ),
    more_workers=COUNT,
    total=series("limit", "quota", "used", "promised", "queued", "process"),
)

STORE = record(
    workers=listing(
        record(
            **_WORKER,
            **dict.fromkeys(("process", "private", "shared", "mapped", "other", "disk"), COUNT),
        )
    ),
    more_workers=COUNT,
    total=series("process", "private", "shared", "disk"),
)

_ESTIMATE = record(
    graph={"type": "integer"},
    stock=POSITIVE,
    plan=POSITIVE,
    moved=POSITIVE,
    operands=COUNT,
    of=COUNT,
    known_sizes={"type": "number", "minimum": 0, "maximum": 1},
)

TRANSFERS = record(
    moved=POSITIVE,
    unsure=POSITIVE,
    by_handle=maybe(COUNT),
    by_comm=maybe(COUNT),
    matrix=record(
        between={"type": "string", "enum": ["workers", "hosts"]},
        names=listing(TEXT),
        bytes=listing(listing(POSITIVE)),
    ),
    series=series("moved"),
    estimate={"anyOf": [_ESTIMATE, {"type": "null"}]},
    reason=maybe(TEXT),
)

KERNELS = record(
    workers_on=COUNT,
    workers=COUNT,
    saved=NUMBER,
    runs=COUNT,
    fused=COUNT,
    compiled=POSITIVE,
    expressions=listing(
        record(
            text=TEXT,
            dtypes=TEXT,
            backend=TEXT,
            runs=COUNT,
            saved=NUMBER,
            compiled=POSITIVE,
            given_up=COUNT,
            workers=COUNT,
        )
    ),
    more_expressions=COUNT,
)

_LOSS = {
    "type": "object",
    "properties": {"worker": TEXT, "time": NUMBER, "seconds": maybe(NUMBER)},
    "required": ["worker", "time", "seconds"],
}

FAULTS = record(
    **dict.fromkeys(
        (
            "losses",
            "recovered",
            "results_lost",
            "results_adopted",
            "computed_again",
            "excess",
            "retried",
            "fatal",
            "cancelled",
            "interrupted",
        ),
        COUNT,
    ),
    last=listing(_LOSS),
    exceptions=mapping(COUNT),
    failure=maybe(TEXT),
)
