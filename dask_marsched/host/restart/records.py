"""Defines the tables of a scheduler's journal, and packs messages with graphs as bytes."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any

from distributed.protocol import pickle
from distributed.protocol.serialize import Serialized

#: Messages with graphs as they arrived, by number.
GRAPHS = "graphs"
#: How the scheduler made the tasks of each graph, by number (`ArrivingGraph.record`).
CREATED = "created"
#: Bits of the keys that were released of a graph, by number and chunk.
RELEASED = "released"
#: Single keys that a client wants.
WANTS = "wants"
#: The number of the last message of each client that comes back.
SESSIONS = "sessions"
#: Names of workers by address.
WORKERS = "workers"
#: Errors of failed tasks.
ERRORS = "errors"
#: Retries left, and workers that died, of tasks that ran before.
ATTEMPTS = "attempts"
#: Variables, queues, datasets and the like.
OBJECTS = "objects"
#: One row each: how often a scheduler has started with this journal, the last run, the outages.
FACTS = "facts"
#: Of the facts: a number above those of all runs of what had been released by then.
LAST_RUN = "last_run"
#: Of the facts: the number of the graph that was being read again, and how often it has been.
READING = "reading"

TABLES = (FACTS, GRAPHS, CREATED, RELEASED, WANTS, SESSIONS, WORKERS, ERRORS, ATTEMPTS, OBJECTS)


def numbered(number: int) -> str:
    """Return the name of a graph's row; names are in the order of arrival."""
    return f"{number:012d}"


def of_chunk(number: int, chunk: int) -> str:
    """Return the name of the row of a chunk of released keys."""
    return f"{number:012d}/{chunk}"


def of_want(client: str, key: Hashable) -> str:
    """Return the name of the row of a single key that a client wants."""
    return f"{client} {key!r}"


_LENGTH = struct.Struct("<Q")


def pack(message: dict[str, Any]) -> bytes:
    """Return the bytes of a message; its graph stays serialized as the client sent it."""
    graph = message["expr_ser"]
    frames = [memoryview(frame).cast("B") for frame in graph.frames]
    rest = {name: value for name, value in message.items() if name != "expr_ser"}
    head = pickle.dumps((rest, graph.header, [frame.nbytes for frame in frames]))
    return b"".join((_LENGTH.pack(len(head)), head, *frames))


def unpack(data: bytes) -> dict[str, Any]:
    """Return the message of these bytes."""
    (length,) = _LENGTH.unpack_from(data)
    at = _LENGTH.size
    rest, header, sizes = pickle.loads(data[at : at + length])
    at += length
    frames = []
    for size in sizes:
        frames.append(data[at : at + size])
        at += size
    return {**rest, "expr_ser": Serialized(header, frames)}
