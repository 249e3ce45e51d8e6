"""JSON Schemas of the API's answers."""

from __future__ import annotations

from typing import Any

from dask_marsched.core.operand import State

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
SECONDS: Schema = {"type": "number", "minimum": 0}
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
    waiting=SECONDS,
    loading=SECONDS,
    calculating=NUMBER,
    storing=SECONDS,
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

GRAPH = record(
    number=COUNT,
    client=TEXT,
    arrived=NUMBER,
    operands=COUNT,
    wanted=COUNT,
)
