"""Lets a worker outlive its scheduler: it waits for one that knows its tasks, and registers again.

A stock worker closes when the connection to its scheduler breaks. Here it keeps its process, its
results and what it runs; what it was only asked to run is dropped. When there is a scheduler again,
the worker tells it what it holds and runs. Messages from then on, such as that a task has finished,
are held back until the scheduler has answered that it knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

from dask.utils import typename
from distributed import Worker
from distributed.batched import BatchedSend
from distributed.comm import connect
from distributed.core import Status
from distributed.metrics import monotonic, time
from distributed.protocol import pickle
from distributed.versions import get_versions
from distributed.worker_state_machine import (
    RUN_ID_SENTINEL,
    FreeKeysEvent,
    PauseEvent,
    TaskErredMsg,
    UnpauseEvent,
)

from dask_marsched.host.client import patient_calls
from dask_marsched.host.client.patient_calls import PatientCalls
from dask_marsched.host.client.reconnection import resumable
from dask_marsched.host.contract import demand, misfits_of_paths
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.worker import lost_shuffles

logger = logging.getLogger("dask_marsched")

#: Operation by which a worker tells a scheduler what it holds, before it registers.
RETURNING = "marsched_returning"
#: Answer of a scheduler that was not restarted and is about to remove the worker, which lost its
#: connection.
REGISTERED = "registered"

#: Seconds between two attempts to connect, and the longest that one takes: Dask's own attempts come
#: ever more rarely.
_BETWEEN, _PROBED = 0.1, 1.0
#: Seconds in which the scheduler tells which shuffles go on.
_ASKED = 5.0
_LOST = "worker-handle-scheduler-connection-broken"
_MISSING = "worker-heartbeat-missing"
_STAYS = (Status.running, Status.paused, Status.closing_gracefully)
#: States of tasks that outlive the scheduler: held, running, or failed with nobody told.
_KEPT = ("memory", "executing", "long-running", "error")


def misfits(worker: Any) -> list[str]:
    """Return how a worker differs from what coming back expects; empty if it does not."""
    names = ("batched_stream", "periodic_callbacks", "scheduler", "state", "contact_address")
    functions = {
        "worker.close": ("reason",),
        "worker.handle_scheduler": ("comm",),
        "worker.plugin_add": ("plugin", "name"),
        "worker._get_client": ("timeout",),
        "worker.get_startup_information": (),
        "worker._update_latency": ("latency",),
    }
    found = misfits_of_paths(worker, {"worker": names}, functions)
    return [*patient_calls.misfits(), *lost_shuffles.misfits(worker), *found]


class Reconnection:
    """Has a worker wait up to ``patience`` seconds for a scheduler that comes back.

    ``on_return`` is called when it is there. A plugin of the scheduler is installed if the worker
    lacks it, or ``is_outdated`` says so, given its name and the pickled one.
    """

    def __init__(
        self,
        worker: Worker,
        patience: float,
        on_return: Callable[[], None],
        is_outdated: Callable[[str, bytes], bool],
    ) -> None:
        self.worker: Any = worker
        self.patience = patience
        self._on_return = on_return
        self._is_outdated = is_outdated
        self.returned = 0  #: How often the worker has come back.
        self._undo = Replacements()
        self._waiting: asyncio.Task[None] | None = None

    def install(self) -> None:
        """Intercept the end of the connection, or raise a RuntimeError and change nothing."""
        demand(misfits(self.worker), "the worker closes when its scheduler dies")
        self._undo.attribute(self.worker, "close", self._close)
        self._undo.attribute(self.worker, "_get_client", self._get_client)
        calls = PatientCalls(self.worker.scheduler, self)
        calls.install()
        self._undo.callback(calls.uninstall)

    def uninstall(self) -> None:
        """Restore the worker. Idempotent."""
        self._undo.close()

    def report(self) -> dict[str, Any]:
        """Return counts, as plain values for JSON."""
        return {"returned": self.returned, "waiting": self.is_away()}

    def is_away(self) -> bool:
        """Whether the scheduler is gone and the worker waits for it."""
        return self._waiting is not None and not self._waiting.done()

    def _get_client(self, *args: Any, **kwargs: Any) -> Any:
        """Return the worker's client, which tasks use that submit tasks; it comes back, too."""
        client = type(self.worker)._get_client(self.worker, *args, **kwargs)
        if (connection := resumable(client, self.patience)) is not None:
            connection.begin_soon()
        return client

    async def _close(self, *args: Any, **kwargs: Any) -> Any:
        worker, reason = self.worker, kwargs.get("reason")
        if reason in (_LOST, _MISSING) and worker.status in _STAYS:
            stream = worker.batched_stream.comm
            # A heartbeat may reach the new scheduler first. If the stream is whole, the present
            # scheduler has removed this worker.
            if self.is_away() or stream is None or stream.closed():
                if not self.is_away():
                    self._waiting = asyncio.create_task(self._come_back())
                return None
        if self.is_away() and self._waiting is not asyncio.current_task():
            self._waiting.cancel()  # type: ignore[union-attr]  # it waits
        return await type(worker).close(worker, *args, **kwargs)

    async def _come_back(self) -> None:
        worker = self.worker
        logger.warning(
            "The scheduler at %s is gone; %s keeps its results and waits up to %.0f s for it",
            worker.scheduler.address,
            worker.contact_address,
            self.patience,
        )
        for name in ("keep-alive", "heartbeat"):
            worker.periodic_callbacks[name].stop()
        _drop_what_waits(worker)
        lost_shuffles.abandon_all(worker)
        if worker.status == Status.closing_gracefully:
            worker.status = Status.running  # its retirement has died with the scheduler
        until = monotonic() + self.patience
        why = "worker-scheduler-did-not-come-back"
        while monotonic() < until and worker.status in _STAYS:
            try:
                answer = await self._announce()
                if answer is not None and answer.get("status") == REGISTERED:
                    await asyncio.sleep(_BETWEEN)
                    continue
                if answer is None or answer.get("status") != "OK":
                    why = "worker-unknown-to-new-scheduler"
                    break
                comm, response = await self._register()
            except (asyncio.TimeoutError, OSError):
                await asyncio.sleep(_BETWEEN)
                continue
            except Exception:
                logger.exception("%s cannot return to its scheduler", worker.contact_address)
                why = "worker-cannot-return"
                break
            if response.get("status") != "OK":
                # The scheduler was not restarted, and still removes this worker.
                await comm.close()
                await asyncio.sleep(_BETWEEN)
                continue
            try:
                await asyncio.wait_for(lost_shuffles.abandon_ended(worker), _ASKED)
            except Exception as error:
                # If the scheduler has died again, the end of the connection is noticed next.
                logger.warning("It is not known which shuffles go on: %r", error)
            await self._resume(comm, response)
            return
        if worker.status in _STAYS:
            await type(worker).close(worker, reason=why)

    async def _connect(self) -> Any:
        worker = self.worker
        return await connect(worker.scheduler.address, timeout=_PROBED, **worker.connection_args)

    async def _announce(self) -> Any:
        """Tell the scheduler what the worker holds and runs; return its answer.

        What happens from then on is held back as messages.
        """
        worker = self.worker
        # A connection of its own, as pooled ones to the dead scheduler may still be there.
        comm = await self._connect()
        try:
            about = {"address": worker.contact_address, "server_id": worker.id}
            message = {"op": RETURNING, **about, **_holdings(worker)}
            worker.batched_stream = self._held = _HeldMessages(_errors(worker))
            await comm.write(message, serializers=["msgpack"])
            return await comm.read(deserializers=["msgpack"])
        finally:
            comm.abort()

    async def _register(self) -> tuple[Any, dict[str, Any]]:
        """Register as a stock worker does."""
        worker, start = self.worker, time()
        comm = await self._connect()
        comm.name = "Worker->Scheduler"
        comm._server = weakref.ref(worker)
        metrics = await worker.get_metrics()
        for extension in worker.extensions.values():
            if hasattr(extension, "heartbeat"):
                extension.heartbeat()  # as after each collection of metrics
        try:
            await comm.write(
                {
                    "op": "register-worker",
                    "reply": False,
                    "address": worker.contact_address,
                    "status": worker.status.name,
                    "nthreads": worker.state.nthreads,
                    "name": worker.name,
                    "now": start,
                    "resources": worker.state.total_resources,
                    "memory_limit": worker.memory_manager.memory_limit,
                    "local_directory": worker.local_directory,
                    "services": worker.service_ports,
                    "nanny": worker.nanny,
                    "pid": os.getpid(),
                    "versions": get_versions(),
                    "metrics": metrics,
                    "extra": await worker.get_startup_information(),
                    "stimulus_id": f"worker-connect-{time()}",
                    "server_id": worker.id,
                },
                serializers=["msgpack"],
            )
            response = await comm.read(deserializers=["msgpack"])
        except BaseException:
            comm.abort()
            raise
        end = time()
        worker._update_latency(end - start)
        if "time" in response:
            worker.scheduler_delay = response["time"] - (start + end) / 2
        return comm, response

    async def _resume(self, comm: Any, response: dict[str, Any]) -> None:
        worker = self.worker
        worker.batched_stream = BatchedSend(interval="2ms", loop=worker.loop)
        worker.batched_stream.start(comm)
        worker.batched_stream.send(*self._held.messages)
        self.returned += 1
        logger.warning("%s is back at its scheduler", worker.contact_address)
        self._waiting = None  # from here on, the connection may break again
        for name in ("keep-alive", "heartbeat"):
            worker.periodic_callbacks[name].start()
        worker.loop.add_callback(worker.handle_scheduler, comm)
        self._on_return()
        for name, plugin in response["worker-plugins"].items():
            if name not in worker.plugins or self._is_outdated(name, plugin):
                await worker.plugin_add(name=name, plugin=plugin)


class _HeldMessages:
    """Keeps messages in place of a worker's `BatchedSend`, which drops them without a comm."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.comm = self

    def send(self, *messages: dict[str, Any]) -> None:
        """Keep messages."""
        self.messages += messages

    def closed(self) -> bool:
        """Whether messages would be dropped."""
        return False

    async def close(self, timeout: Any = None) -> None:
        """Do nothing, as there is nobody to tell."""


def _drop_what_waits(worker: Any) -> None:
    """Drop what the dead scheduler had asked the worker to run or fetch and that has not begun."""
    state, stimulus_id = worker.state, f"marsched-returning-{time()}"
    # Paused, the state machine is told what threads have done, and they begin no other task.
    worker.handle_stimulus(PauseEvent(stimulus_id=stimulus_id))
    drop = [ts.key for ts in state.tasks.values() if ts.state not in _KEPT]
    worker.handle_stimulus(FreeKeysEvent(keys=drop, stimulus_id=stimulus_id))
    if worker.status == Status.running:
        worker.handle_stimulus(UnpauseEvent(stimulus_id=stimulus_id))


def _holdings(worker: Any) -> dict[str, Any]:
    """Return the results that a worker holds and the tasks that it runs, as a message."""
    types: dict[Any, int] = {}
    held, runs = [], []
    last_run = max((ts.run_id for ts in worker.state.tasks.values()), default=RUN_ID_SENTINEL)
    for ts in worker.state.tasks.values():
        if ts.state == "memory":
            number = types.setdefault(ts.type, len(types))
            run_id = last_run if ts.run_id == RUN_ID_SENTINEL else ts.run_id
            held.append((ts.key, ts.nbytes, number, run_id))
        elif ts.state in _KEPT:  # a failed one runs, to the scheduler, until its error arrives
            runs.append((ts.key, ts.run_id, ts.state == "long-running"))
    return {"held": held, "types": [_packed(t) for t in types], "runs": runs}


def _errors(worker: Any) -> list[dict[str, Any]]:
    """Return messages about tasks that failed, which the scheduler may not know."""
    return [
        TaskErredMsg.from_task(
            ts, run_id=ts.run_id, stimulus_id=f"marsched-returning-{time()}"
        ).to_dict()
        for ts in worker.state.tasks.values()
        if ts.state == "error"
    ]


def _packed(of: Any) -> tuple[bytes, str]:
    with contextlib.suppress(Exception):
        return pickle.dumps(of), typename(of)
    return pickle.dumps(typename(of)), typename(of)
