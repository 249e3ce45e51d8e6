"""JSON Schemas of the API's answers, field by field, which the tests check each answer against."""

from __future__ import annotations

from typing import Any

from dask_marsched.core.operand import State

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
#: Seconds, bytes and the like that may have a fraction.
POSITIVE: Schema = {"type": "number", "minimum": 0}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
TRUTH: Schema = {"type": "boolean"}
STATE: Schema = {"type": "string", "enum": [state.value for state in State]}


def maybe(schema: Schema) -> Schema:
    """Return the schema of a value that may also be null."""
    if "properties" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def listing(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def mapping(values: Schema) -> Schema:
    """Return the schema of an object with any names."""
    return {"type": "object", "additionalProperties": values}


def fields(schema: Schema, names: str) -> dict[str, Schema]:
    """Return fields of one schema, from their names separated by spaces."""
    return dict.fromkeys(names.split(), schema)


def record(*groups: dict[str, Schema], **more: Schema) -> Schema:
    """Return the schema of an object with exactly these fields."""
    properties = {name: schema for group in (*groups, more) for name, schema in group.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def page(items: Schema, **more: Schema) -> Schema:
    """Return the schema of a page of a list; ``next`` is null on the last one."""
    return record(items=listing(items), total=COUNT, next=maybe(COUNT), **more)


def series(names: str) -> Schema:
    """Return the schema of values over time: lists of one length."""
    return record(fields(listing(NUMBER), f"time {names}"))


_EXECUTION = record(
    fields(TEXT, "worker"),
    fields(NUMBER, "sent calculating"),
    fields(POSITIVE, "waiting loading storing"),
)
OPERAND = record(
    fields(COUNT, "retries"),
    fields(maybe(TEXT), "worker cause"),
    key=TEXT,
    state=STATE,
    nbytes=maybe(COUNT),
    priority=listing(maybe(NUMBER)),
    execution=maybe(_EXECUTION),
)
STEP = record(state=STATE, time=NUMBER, dask=listing(TEXT), stimulus=TEXT)

#: The plugin's report has more fields, which depend on the parts that are on.
STATUS = {
    "type": "object",
    "properties": {
        "active": TRUTH,
        "policies": mapping(TEXT),
        "versions": mapping(TEXT),
        "exceptions": mapping(COUNT),
        "exact_sizes": SHARE,
        "scheduler": TEXT,
        **fields(maybe(TEXT), "reason last_exception"),
        **fields(COUNT, "graphs_planned operands_planned operands_placed workers"),
    },
    "required": ["active", "reason", "policies", "exceptions", "versions", "scheduler", "workers"],
}

_COUNTS = record(**{state.value: COUNT for state in State})
_PLANNED = record(
    fields(COUNT, "operands units initial replanned"),
    planned=NUMBER,
    finished=maybe(NUMBER),
    done=TRUTH,
    policies=mapping(TEXT),
    counts=_COUNTS,
    moved=POSITIVE,
)
GRAPH = record(
    fields(COUNT, "number operands wanted"), client=TEXT, arrived=NUMBER, plan=maybe(_PLANNED)
)

#: States that are followed over time.
_FOLLOWED = "unscheduled ready running finished freed fatal cancelled"

PLAN = record(
    fields(COUNT, "graph operands units columns rows depth"),
    fields(TRUTH, "ready aggregated"),
    share=SHARE,
    workers=listing(TEXT),
    cells={
        "type": "object",
        "properties": {
            **fields(listing(COUNT), f"column row operands {_FOLLOWED}"),
            "worker": listing({"type": "integer", "minimum": -1}),
            "worker_share": listing(SHARE),
        },
        "additionalProperties": False,
    },
)

OPERAND_COUNTS = record(
    counts=_COUNTS,
    series=series(_FOLLOWED),
    causes=listing(record(fields(TEXT, "state operand cause"), count=COUNT)),
)

_WORKER = {**fields(TEXT, "worker name host status"), "last_seen": NUMBER}
_QUOTA_ROW = fields(maybe(COUNT), "limit quota used promised queued deferrals forced evictions")
_STORE_ROW = fields(maybe(COUNT), "limit") | fields(
    COUNT, "process private shared mapped other disk"
)
QUOTA = record(
    on=TRUTH,
    thresholds=mapping(maybe(NUMBER)),
    workers=listing(record(_WORKER, _QUOTA_ROW)),
    more_workers=COUNT,
    total=series("limit quota used promised queued process"),
)
STORE = record(
    workers=listing(record(_WORKER, _STORE_ROW)),
    more_workers=COUNT,
    total=series("process private shared disk"),
)

_ESTIMATE = record(
    fields(POSITIVE, "stock plan moved"),
    fields(COUNT, "operands of"),
    graph={"type": "integer"},
    known_sizes=SHARE,
)
TRANSFERS = record(
    fields(POSITIVE, "moved unsure"),
    fields(maybe(COUNT), "by_handle by_comm"),
    matrix=record(
        between={"type": "string", "enum": ["workers", "hosts"]},
        names=listing(TEXT),
        bytes=listing(listing(POSITIVE)),
    ),
    series=series("moved"),
    estimate=maybe(_ESTIMATE),
    reason=maybe(TEXT),
)

_EXPRESSION = record(
    fields(TEXT, "text dtypes backend"),
    fields(COUNT, "runs given_up workers"),
    saved=NUMBER,
    compiled=POSITIVE,
)
KERNELS = record(
    fields(COUNT, "workers_on workers runs fused more_expressions"),
    saved=NUMBER,
    compiled=POSITIVE,
    expressions=listing(_EXPRESSION),
)

_LOSS = {
    "type": "object",
    "properties": {"worker": TEXT, "time": NUMBER, "seconds": maybe(NUMBER)},
    "required": ["worker", "time", "seconds"],
}
_OUTAGE = record(
    fields(COUNT, "tasks held running left workers missing"),
    fields(POSITIVE, "read"),
    time=NUMBER,
    seconds=maybe(POSITIVE),
)
FAULTS = record(
    fields(COUNT, "losses recovered results_lost results_adopted computed_again excess"),
    fields(COUNT, "retried fatal cancelled interrupted"),
    last=listing(_LOSS),
    exceptions=mapping(COUNT),
    failure=maybe(TEXT),
    outages=listing(_OUTAGE),
)

#: By method and path, as the endpoints have them.
ANSWERS = {
    ("GET", "/"): record(fields(TEXT, "name version"), writable=TRUTH, endpoints=listing(TEXT)),
    ("GET", "/openapi.json"): {"type": "object"},
    ("GET", "/status"): STATUS,
    ("GET", "/graphs"): page(GRAPH),
    ("GET", "/graphs/{graph}"): GRAPH,
    ("GET", "/graphs/{graph}/plan"): PLAN,
    ("POST", "/graphs/{graph}/cancel"): record(fields(COUNT, "graph cancelled")),
    ("GET", "/operands"): page(OPERAND, history=listing(STEP)),
    ("GET", "/counts"): OPERAND_COUNTS,
    ("GET", "/quota"): QUOTA,
    ("GET", "/store"): STORE,
    ("GET", "/transfers"): TRANSFERS,
    ("GET", "/kernels"): KERNELS,
    ("GET", "/faults"): FAULTS,
    ("POST", "/restart"): record(restarting=TRUTH),
}
