"""Defines the base of ``with`` blocks during which a scheduler plugin records: `RecordedBlock`."""

from __future__ import annotations

import abc
from types import TracebackType
from typing import TYPE_CHECKING

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_marsched.installation import how_to_install

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none


class RecordedBlock(abc.ABC):
    """Implements ``with`` and ``async with``; `called` is the block's name in error messages."""

    called: str

    @property
    @abc.abstractmethod
    def client(self) -> Client:
        """The client whose cluster is recorded."""

    @abc.abstractmethod
    async def _begin(self) -> None:
        """Start recording."""

    @abc.abstractmethod
    async def _end(self, error: BaseException | None) -> None:
        """Stop recording; `error` is the exception that has ended the block, if any."""

    async def _record_by(self, recorder: SchedulerPlugin, name: str) -> None:
        """Register the recording plugin; RuntimeError if the scheduler cannot import it."""
        try:
            await self.client.register_plugin(recorder, name=name)
        except ImportError as error:
            raise RuntimeError(
                f"{self.called} needs this version of dask_marsched on the scheduler, which "
                f"failed to import it ({error}): run {how_to_install()}, in the "
                "scheduler's environment, and restart it"
            ) from error

    def __enter__(self) -> Self:
        if self.client.asynchronous:
            raise TypeError(f"this client is asynchronous: write `async with {self.called}`")
        self.client.sync(self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.sync(self._end, error)

    async def __aenter__(self) -> Self:
        if not self.client.asynchronous:
            raise TypeError(f"this client is not asynchronous: write `with {self.called}`")
        await self._begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end(error)
