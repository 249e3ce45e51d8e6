"""Cancelling on the scheduler, so that the same keys can be submitted again at once.

Stock Dask tells all clients which keys were cancelled, also the one that asked for it and has
dropped its futures already. Where that client has submitted one of the keys again meanwhile, the
new future is cancelled by the late message: of 60 resubmissions right after a cancel 40 failed.
Here it is told of those keys only that it has not named itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dask.typing import Key
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState

from dask_marsched.host.worker.interrupts import CANCEL, INTERRUPT

_HANDLER = "cancel-keys"
#: A reason by which a client has whatever runs interrupted; it stands in its futures' errors.
INTERRUPTED = "cancelled and interrupted by dask_marsched"


def misfits(scheduler: Any) -> list[str]:
    """Return what in a scheduler is not as cancelling expects it; empty if all is well."""
    handler = getattr(scheduler, "stream_handlers", {}).get(_HANDLER)
    if getattr(handler, "__name__", None) != "stimulus_cancel":
        return [f"the stream handler {_HANDLER!r} is not Scheduler.stimulus_cancel"]
    return []


class Cancelling:
    """Takes over what clients ask a scheduler to cancel.

    Parameters
    ----------
    scheduler
        The scheduler.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler: Any = scheduler
        self._stock: Any = None

    def install(self) -> bool:
        """Take over; False where the scheduler is not as expected."""
        if misfits(self.scheduler):
            return False
        self._stock = self.scheduler.stream_handlers[_HANDLER]
        self.scheduler.stream_handlers[_HANDLER] = self._cancel
        return True

    def uninstall(self) -> None:
        """Give it back. Idempotent."""
        if self._stock is not None:
            self.scheduler.stream_handlers[_HANDLER] = self._stock
            self._stock = None

    def _cancel(
        self, keys: Collection[Key], client: str, force: bool, reason: str, msg: str
    ) -> None:
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
    """Cancel what a client wants, and all that is wanted and relies on it.

    Parameters
    ----------
    scheduler
        A `distributed.Scheduler`.
    keys
        Keys of results.
    client
        Who asks for it.
    force
        Whether to cancel what other clients want too.
    reason, message
        For the futures' errors. With `INTERRUPTED` what may do harm then is interrupted, too.
    told
        Whether that client knows which keys it has named.

    Returns
    -------
    list of Key
        What was cancelled.
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
            # It goes on, for those who want it.
            if len(others) < len(wanting):
                released.setdefault(client, []).append(ts.key)
            continue
        for cs in wanting:
            released.setdefault(cs.client_key, []).append(ts.key)
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
    """Return the tasks of keys that somebody wants, and the wanted ones that rely on them.

    Not what relies on a task that goes on, since others than the client want it; for no client
    none does.
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
