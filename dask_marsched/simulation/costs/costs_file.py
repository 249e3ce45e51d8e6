"""Costs in a Parquet file."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dask_marsched.simulation.costs.costs import Costs

_FORMAT = 1
_METADATA = b"dask_marsched"
_COLUMNS = ("key", "nbytes", "seconds", "input_nbytes")


def pyarrow() -> Any:
    """Return the modules of pyarrow that are needed.

    Raises
    ------
    ImportError
        If it is not installed; the message says what to install.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            "files of costs need pyarrow, which is not installed: pip install pyarrow"
        ) from error
    return pyarrow


def write(
    path: str,
    costs: Costs,
    facts: Mapping[str, Any],
    executions: Mapping[str, Sequence[Any]] | None = None,
) -> None:
    """Write costs to a file, a row for each task.

    Keys are kept exactly if they are strings, numbers or tuples of these, nested or not. Of
    anything else in a key its ``repr`` is kept, so that the key is found again by name and
    position only; the metadata say for how many keys that was so.

    Parameters
    ----------
    path
        Where to.
    costs
        What to write.
    facts
        What else to keep, as JSON in the metadata.
    executions
        Columns as in `TaskRecorder`; those that tell where and when each task ran last are kept.

    Raises
    ------
    ImportError
        If pyarrow is not installed.
    """
    arrow = pyarrow()
    keys = list(costs.nbytes)
    texts = [encode_key(key) for key in keys]
    facts = {
        "format": _FORMAT,
        "overhead": costs.overhead,
        "keys_by_repr": sum(not _is_exact(key) for key in keys),
        **facts,
    }
    columns: dict[str, Any] = {
        "key": arrow.array(texts, arrow.string()),
        "nbytes": arrow.array(costs.nbytes.values(), arrow.int64()),
        "seconds": arrow.array([costs.seconds.get(key) for key in keys], arrow.float64()),
        "input_nbytes": arrow.array([costs.input_nbytes.get(key) for key in keys], arrow.int64()),
    }
    if executions is not None:
        last = {key: row for row, key in enumerate(executions["key"])}
        rows = [last[key] for key in keys]
        for name in ("worker", "thread", "start", "stop", "transfer", "disk"):
            columns[name] = arrow.array([executions[name][row] for row in rows])
    table = arrow.table(columns).replace_schema_metadata({_METADATA: json.dumps(facts).encode()})
    arrow.parquet.write_table(table, path, compression="zstd")


def read(path: str) -> tuple[dict[str, dict[Any, Any]], dict[str, Any]]:
    """Read what `write` wrote.

    Returns
    -------
    columns : dict of str to dict
        ``nbytes``, ``seconds`` and ``input_nbytes`` by key, without what is not known.
    facts : dict
        The metadata.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it holds something else.
    ImportError
        If pyarrow is not installed.
    """
    arrow = pyarrow()
    try:
        table = arrow.parquet.read_table(path)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"costs: {path} is no Parquet file ({error})") from None
    found = (table.schema.metadata or {}).get(_METADATA)
    if found is None or not set(_COLUMNS) <= set(table.column_names):
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
    for name in _COLUMNS[1:]:
        values = zip(keys, table[name].to_pylist(), strict=True)
        columns[name] = {key: value for key, value in values if value is not None}
    return columns, facts


def encode_key(key: Any) -> str:
    """Return a key as text, see `write`."""
    return json.dumps(_portable(key), separators=(",", ":"))


def _portable(part: Any) -> Any:
    """Return a part of a key as JSON can hold it; other types become their ``repr``."""
    if isinstance(part, tuple):
        return [_portable(entry) for entry in part]
    if isinstance(part, str | int | float):
        return part
    return operator.index(part) if hasattr(part, "__index__") else repr(part)


def _is_exact(part: Any) -> bool:
    if isinstance(part, tuple):
        return all(map(_is_exact, part))
    return isinstance(part, str | int | float) or hasattr(part, "__index__")


def decode_key(text: str) -> Any:
    """Return the key that `encode_key` made a text of."""
    return _tuples(json.loads(text))


def _tuples(part: Any) -> Any:
    return tuple(map(_tuples, part)) if isinstance(part, list) else part
