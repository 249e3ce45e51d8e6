"""Sends small plain results as parts of the message to a peer, not as frames of their own."""

from __future__ import annotations

from typing import Any

from distributed.protocol import Serialize

#: Longest text that is part of the message, characters; and the bound that integers are below.
_LONGEST_TEXT, _INTEGER_BOUND = 1024, 2**63


class PlainReply:
    """A comm for `Worker.get_data`; serializing each number by itself takes 30 times as long."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    async def write(self, message: Any, **kwargs: Any) -> Any:
        """Write a reply with results of plain types as they are, which every peer can read."""
        if type(message) is dict and type(data := message.get("data")) is dict:
            message["data"] = {
                key: value.data if type(value) is Serialize and is_plain(value.data) else value
                for key, value in data.items()
            }
        return await self._comm.write(message, **kwargs)


def is_plain(value: object) -> bool:
    """Whether a value is the same after its way through msgpack, and small."""
    kind = type(value)
    if kind is int:
        return -_INTEGER_BOUND <= value < _INTEGER_BOUND  # type: ignore[operator]  # its type is known
    if kind is str:
        return len(value) <= _LONGEST_TEXT and value.isascii()  # type: ignore[arg-type,attr-defined]
    return kind in (float, bool, type(None))
