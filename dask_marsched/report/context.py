"""Writes a report of a block of code to a file: `performance_report`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import traceback
import uuid
from collections.abc import Mapping
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

import distributed
import fsspec
from distributed import Scheduler

from dask_marsched.monitoring.probes import heartbeat_probe
from dask_marsched.monitoring.recorded_block import RecordedBlock
from dask_marsched.report.page import html
from dask_marsched.report.recorder import ReportRecorder
from dask_marsched.status import status

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10 has none

logger = logging.getLogger("dask_marsched")

_PREFIX = "marsched-report-"
#: Lines of the user's program in a report, around the block.
_MOST_LINES = 60
#: Seconds to wait for the workers' current figures; later, those of their last heartbeat serve.
_PATIENCE = 5.0


class performance_report(RecordedBlock):  # named like distributed's
    """Write an HTML report of the scheduler's plans and actions within a ``with`` block.

    The file shows the plan and the operands by state of each graph that arrives meanwhile, the
    memory of each worker, transfers beside an estimate for stock Dask, fused kernels, faults,
    settings and versions. It needs no network and no script, so that it can be sent to somebody.
    It is also written when the block fails. Dask's own report,
    `distributed.performance_report`, can be made of the same block.

    Parameters
    ----------
    filename : str or path-like, default "marsched-report.html"
        Path of the file, whose directories are created, or any address that fsspec opens
        (``s3://...``). Names ending in ``.gz`` are compressed.
    client : distributed.Client, optional
        A client of the cluster; by default the current one.
    title : str, optional
        The heading.
    stacklevel : int, default 1
        Code to show: 1 is the code of the block, 2 that of the caller of its function, and so on;
        0 for none.
    storage_options : dict, optional
        For fsspec.

    Raises
    ------
    TypeError
        ``client`` is not a client, or the kind of ``with`` does not suit it.
    RuntimeError
        The scheduler cannot import this package.

    Examples
    --------
    >>> with dask_marsched.performance_report("report.html"):  # doctest: +SKIP
    ...     x.compute()
    """

    called = "performance_report()"

    def __init__(
        self,
        filename: str | os.PathLike[str] = "marsched-report.html",
        client: distributed.Client | None = None,
        *,
        title: str | None = None,
        stacklevel: int = 1,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.filename = os.fspath(filename)
        self.title = title or "dask_marsched report"
        self._given = client
        self._stacklevel = stacklevel
        self._storage_options = dict(storage_options or {})
        if client is not None and not isinstance(client, distributed.Client):
            raise TypeError(f"client must be a distributed.Client, not {client!r}")

    @property
    def client(self) -> distributed.Client:
        """The client given, or the current one."""
        if self._given is None:
            self._given = distributed.get_client()
        return self._given

    def __enter__(self) -> Self:
        self._code = _calling_code(inspect.currentframe(), self._stacklevel)
        return super().__enter__()

    async def __aenter__(self) -> Self:
        self._code = _calling_code(inspect.currentframe(), self._stacklevel)
        return await super().__aenter__()

    async def _begin(self) -> None:
        self._when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
        self._name = _PREFIX + uuid.uuid4().hex
        await self._up_to_date()
        await self._record_by(ReportRecorder(self._name, self.client.id), self._name)

    async def _up_to_date(self) -> None:
        run: Any = self.client.run
        try:
            await asyncio.wait_for(run(heartbeat_probe(), on_error="ignore"), _PATIENCE)
        except Exception as error:  # their last heartbeat serves
            logger.debug("the workers were not asked for figures: %r", error)

    async def _end(self, error: BaseException | None) -> None:
        try:
            await self._write(error)
        except Exception as failure:
            if error is None:
                raise
            # The user needs to see the error of the block.
            logger.error("no report was written to %s: %r", self.filename, failure)

    async def _write(self, error: BaseException | None) -> None:
        await self._up_to_date()
        run: Any = self.client.run_on_scheduler
        found = await run(_take, self._name)
        if found is None:  # the block has succeeded all the same
            logger.warning(
                "no report was written to %s: the scheduler has restarted", self.filename
            )
            return
        known = await status(self.client)
        error_text = "".join(traceback.format_exception_only(error)) if error is not None else ""
        found |= {
            "title": self.title,
            "when": self._when,
            "code": self._code,
            "error": error_text.strip() or None,
            "versions": known.versions,
            "workers": len(known.versions) - 2,  # all but the client and the scheduler
        }
        page = await asyncio.to_thread(html, found)
        await asyncio.to_thread(self._save, page)

    def _save(self, page: str) -> None:
        options: dict[str, Any] = {"mode": "w", "compression": "infer", "encoding": "utf-8"}
        with fsspec.open(self.filename, **options, **self._storage_options) as file:
            file.write(page)


async def _take(name: str, dask_scheduler: Scheduler) -> dict[str, Any] | None:
    """Remove a recorder; return its figures. Runs on the scheduler."""
    recorder = dask_scheduler.plugins.get(name)
    if not isinstance(recorder, ReportRecorder):
        return None
    try:
        return await recorder.result()
    finally:
        recorder.stop()
        if name in dask_scheduler.plugins:
            dask_scheduler.remove_plugin(name)


def _calling_code(frame: FrameType | None, level: int) -> str | None:
    """Return the code around the current line of the caller `level` frames up."""
    if level < 1:
        return None
    for _ in range(level):
        frame = frame.f_back if frame is not None else None
    if frame is None:
        return None
    try:
        lines, first = inspect.getsourcelines(frame)
    except OSError:  # no source file
        return None
    # The first line of a module is 0.
    at = max(0, frame.f_lineno - max(1, first))
    begin = max(0, at - 4) if len(lines) > _MOST_LINES else 0
    return "".join(lines[begin : begin + _MOST_LINES]).rstrip()
