"""Reads and writes costs in Parquet files."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

_FORMAT = 1
_METADATA = b"dask_marsched"
#: The columns beside ``key``, and their types.
_TYPES = {"nbytes": "int64", "seconds": "float64", "input_nbytes": "int64"}


def write(
    path: str,
    costs: Mapping[str, Mapping[Any, Any]],
    facts: Mapping[str, Any],
    executions: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Write a row for each task from ``costs``, which has `Costs`'s columns by key.

    Keys of strings, numbers and nested tuples of these are kept exactly; other parts become their
    ``repr``. ``facts`` go to the metadata as JSON. Of ``executions``, columns as in `Recording`,
    the last run of each task is kept.
    """
    import pyarrow  # only here: it takes long
    from pyarrow import parquet

    keys = list(costs["nbytes"])
    joined = costs.get("joined", {})
    facts = {"format": _FORMAT, **facts}
    columns: dict[str, Any] = {"key": pyarrow.array(map(encode_key, keys), pyarrow.string())}
    for name, kind in _TYPES.items():
        values = [costs.get(name, {}).get(key) for key in keys]
        columns[name] = pyarrow.array(values, getattr(pyarrow, kind)())
    members = [[encode_key(member) for member in joined.get(key, ())] for key in keys]
    columns["joined"] = pyarrow.array(members, pyarrow.list_(pyarrow.string()))
    if executions is not None:
        last = {key: row for row, key in enumerate(executions["key"])}
        rows = [last[key] for key in keys]
        for name in ("worker", "thread", "start", "stop", "transfer", "disk"):
            columns[name] = pyarrow.array([executions[name][row] for row in rows])
    table = pyarrow.table(columns).replace_schema_metadata({_METADATA: json.dumps(facts).encode()})
    parquet.write_table(table, path, compression="zstd")


def read(path: str) -> tuple[dict[str, dict[Any, Any]], dict[str, Any]]:
    """Return columns by key, without unknown values, and metadata; ValueError for another file."""
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        # Arrow raises a bare OSError for damage; its subclasses say that there is no such file.
        if isinstance(error, OSError) and type(error) is not OSError:
            raise
        raise ValueError(f"costs: {path} is no Parquet file ({error})") from None
    found = (table.schema.metadata or {}).get(_METADATA)
    if found is None or not {"key", *_TYPES} <= set(table.column_names):
        raise ValueError(
            f"costs: {path} holds no costs; dask_marsched.record(client, path) and "
            "Costs.save(path) write such files"
        )
    facts: dict[str, Any] = json.loads(found)
    if facts.get("format") != _FORMAT:
        raise ValueError(
            f"costs: {path} has format {facts.get('format')!r}, this version reads {_FORMAT}"
        )
    keys = [decode_key(text) for text in table["key"].to_pylist()]
    columns = {}
    for name in _TYPES:
        values = zip(keys, table[name].to_pylist(), strict=True)
        columns[name] = {key: value for key, value in values if value is not None}
    if "joined" in table.column_names:  # older versions wrote none
        groups = zip(keys, table["joined"].to_pylist(), strict=True)
        columns["joined"] = {key: tuple(map(decode_key, own)) for key, own in groups if own}
    return columns, facts


def encode_key(key: Any) -> str:
    """Return a key as a string, see `write`."""
    return json.dumps(_portable(key), separators=(",", ":"))


def _portable(part: Any) -> Any:
    """Return a part of a key as JSON can hold it; other types become their ``repr``."""
    if isinstance(part, tuple):
        return [_portable(entry) for entry in part]
    if isinstance(part, str | int | float):
        return part
    return operator.index(part) if hasattr(part, "__index__") else repr(part)


def decode_key(text: str) -> Any:
    """Return the key of a string that `encode_key` made."""
    return _tuples(json.loads(text))


def _tuples(part: Any) -> Any:
    return tuple(map(_tuples, part)) if isinstance(part, list) else part
