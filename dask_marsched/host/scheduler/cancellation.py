"""Handles cancellation on the scheduler, so that the same keys can be resubmitted at once.

Stock Dask also sends the cancelled keys to the client that asked and has already dropped its
futures. If it has resubmitted a key by then, the late message cancels the new future: 436 of 500
resubmissions failed in a test. Here that client hears only of the keys that it did not name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

from dask.typing import Key
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState

from dask_marsched.host.contract import demand, misfits_of_handler
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.stimuli import CANCEL, INTERRUPT

#: Cancellations are logged as and where distributed does, which `Client.get_scheduler_logs` shows.
logger = logging.getLogger("distributed.scheduler")

_HANDLER = "cancel-keys"
#: Reason with which a client asks for the interruption of running tasks; futures' errors show it.
INTERRUPTED = "cancelled and interrupted by dask_marsched"


def misfits(scheduler: Any) -> list[str]:
    """Return what cancellation does not find as expected in a scheduler; empty if all is well."""
    return misfits_of_handler(scheduler, "stream_handlers", _HANDLER, "stimulus_cancel")


class CancellationHandler:
    """Replaces the scheduler's handler of cancellations."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Any = scheduler
        self._undo = Replacements()

    def install(self) -> None:
        """Replace the handler; raise a RuntimeError if the scheduler does not fit."""
        demand(misfits(self.scheduler), "running tasks cannot be interrupted")
        self._undo.entry(self.scheduler.stream_handlers, _HANDLER, self._cancel)

    def uninstall(self) -> None:
        """Restore the handler. Idempotent."""
        self._undo.close()

    def _cancel(
        self, keys: Collection[Key], client: str, force: bool, reason: str, msg: str
    ) -> None:
        logger.info("Client %s requests to cancel %d keys", client, len(keys))
        self.scheduler.log_event(client, {"action": "cancel", "count": len(keys), "force": force})
        cancel(self.scheduler, keys, client=client, force=force, reason=reason, message=msg)


def cancel(
    scheduler: Any,
    keys: Iterable[Key],
    *,
    client: str,
    force: bool,
    reason: str | None = None,
    message: str | None = None,
    told: bool = True,
) -> list[Key]:
    """Cancel results that a client wants, and the wanted results that depend on them.

    ``force`` also cancels results that other clients want. Futures' errors show ``reason`` and
    ``message``; the reason `INTERRUPTED` also interrupts tasks that may have side effects. ``told``
    is whether the client already knows which keys it has named. Returns all cancelled keys.
    """
    named = list(keys)
    affected = _with_dependents(scheduler, named, None if force else client)
    clients = {cs for ts in affected for cs in ts.who_wants or ()}
    released: dict[str, list[Key]] = {}
    cancelled: dict[Key, None] = {}
    for ts in affected:
        wanting = ts.who_wants or set()
        others = [cs for cs in wanting if cs.client_key != client]
        if others and not force:
            if len(others) < len(wanting):
                released.setdefault(client, []).append(ts.key)
            continue
        for cs in wanting:
            released.setdefault(cs.client_key, []).append(ts.key)
        logger.info("Scheduler cancels key %s.  Force=%s", ts.key, force)
        cancelled[ts.key] = None
    stimulus_id = f"{INTERRUPT if reason == INTERRUPTED else CANCEL}-{time()}"
    for who, own in released.items():
        scheduler.client_releases_keys(keys=own, client=who, stimulus_id=stimulus_id)
    known = set(named) if told else set()
    for who in sorted(cs.client_key for cs in clients):
        tell = [key for key in cancelled if not (who == client and key in known)]
        if tell and who in scheduler.client_comms:
            scheduler.report(
                {"op": "cancelled-keys", "keys": tell, "reason": reason, "msg": message}, client=who
            )
    return list(cancelled)


def _with_dependents(scheduler: Any, keys: Iterable[Key], client: str | None) -> list[TaskState]:
    """Return the wanted tasks among the keys and their dependents.

    With a client, tasks that other clients want stop the search: they and their dependents go on.
    """
    stack = [scheduler.tasks[key] for key in keys if key in scheduler.tasks]
    seen = dict.fromkeys(stack)
    while stack:
        ts = stack.pop()
        if client and any(cs.client_key != client for cs in ts.who_wants or ()):
            continue
        for dts in ts.dependents:
            if dts not in seen:
                seen[dts] = None
                stack.append(dts)
    return [ts for ts in seen if ts.who_wants]
