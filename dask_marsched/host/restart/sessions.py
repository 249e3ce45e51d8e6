"""Takes clients back that outlived their scheduler: `Sessions`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dask.typing import Key
from distributed.scheduler import Scheduler

from dask_marsched.host.client.reconnection import (
    INVITED,
    KEEPS_JOURNAL,
    LOST,
    OVER,
    RESUME,
    SESSION,
)
from dask_marsched.host.contract import demand, misfits_of_attributes, misfits_of_function
from dask_marsched.host.replacements import Replacements
from dask_marsched.host.restart.recorder import RESTORED, Recorder

_CANCEL = "cancel-keys"
_LOST = (
    "The scheduler was restarted, and what this result needs did not survive: it was not in the "
    "journal, or its data came without a task and no worker holds it. Please re-run your work."
)


def misfits(scheduler: Any) -> list[str]:
    """Return what sessions do not find as expected in a scheduler."""
    return [
        *misfits_of_attributes("Scheduler", scheduler, ("handlers", "stream_handlers", "clients")),
        *misfits_of_function("Scheduler", scheduler, "client_desires_keys", ("keys", "client")),
    ]


class Sessions:
    """Answers clients; ``known`` are the numbers of the last messages of those that may come back.

    Until a client is back, a stand-in wants what the client wanted.
    """

    def __init__(
        self, recorder: Recorder, known: Mapping[str, int], patience: float, ready: asyncio.Event
    ) -> None:
        self.recorder = recorder
        self.scheduler: Any = recorder.scheduler
        self.missing = dict(known)
        self._ready = ready
        self._patience = patience
        self._undo = Replacements()
        self._given_up: asyncio.TimerHandle | None = None

    def install(self, invited: Iterable[str] = ()) -> None:
        """Answer clients, or raise a RuntimeError and change nothing; invite some to a session."""
        s = self.scheduler
        demand(misfits(s), "clients do not outlive the scheduler")
        s.handlers[RESUME] = self._resume
        self._identity = self._undo.entry(s.handlers, "identity", self._tell_identity)
        s.stream_handlers[SESSION] = self._session
        self._cancel = self._undo.entry(s.stream_handlers, _CANCEL, self._cancel_keys)
        self.invite(invited)
        if self.missing:
            loop = asyncio.get_running_loop()
            self._given_up = loop.call_later(self._patience, self.give_up)

    def invite(self, clients: Iterable[str]) -> None:
        """Have prepared clients begin a session."""
        for client in clients:
            if client not in self.recorder.sessions:
                self.recorder.send(client, {"op": INVITED})

    def uninstall(self) -> None:
        """Restore the scheduler; sessions that are on their way are refused. Idempotent."""
        if self._given_up is not None:
            self._given_up.cancel()
        if self.scheduler.handlers.pop(RESUME, None) is not None:
            self.scheduler.stream_handlers[SESSION] = self._refuse
        self._undo.close()
        self.give_up()

    def _refuse(self, client: str, **session: Any) -> None:
        self.recorder.send(client, {"op": OVER})

    def _tell_identity(self, n_workers: int = -1) -> dict[str, Any]:
        return {**self._identity(n_workers), KEEPS_JOURNAL: True}

    def stand_in(self, client: str, keys: Collection[Key]) -> None:
        """Want what a client wanted that may come back, or what the scheduler held itself."""
        s: Scheduler = self.scheduler
        type(s).client_desires_keys(s, keys=keys, client=self.stands_in_for(client))

    def stands_in_for(self, client: str) -> str:
        """Return who wants the keys of a client now."""
        return RESTORED + client if client in self.missing else client

    async def _resume(self, client: str) -> dict[str, Any]:
        await self._ready.wait()
        return {"status": "OK", "number": self.missing.get(client)}

    def _session(
        self, client: str, number: int, wants: Collection[Key], begins: bool = False
    ) -> None:
        s, recorder = self.scheduler, self.recorder
        self.missing.pop(client, None)
        recorder.begin_session(client, number)
        wants = set(wants)
        known = [key for key in wants if key in s.tasks]
        s.client_desires_keys(keys=known, client=client)
        if not begins:
            dropped = [ts.key for ts in s.clients[client].wants_what if ts.key not in wants]
            s.client_releases_keys(keys=dropped, client=client)
        recorder.wanted.releases(
            client, [key for key in recorder.wanted.of(client) if key not in wants]
        )
        idle = {key: "waiting" for key in known if _may_start(s.tasks[key])}
        s.transitions(idle, f"marsched-session-{client}")
        self._release(client)
        # At the beginning of a session, the graph of an unknown key is on its way.
        if unknown := [key for key in wants if not begins and key not in s.tasks]:
            why = {"reason": "scheduler-restarted", "msg": _LOST}
            recorder.send(client, {"op": LOST, "keys": unknown, **why})

    def _cancel_keys(self, client: str, **message: Any) -> None:
        """Cancel for a client that has yet to name what it wants: its stand-in is no other one."""
        s = self.scheduler
        if (stand_in := s.clients.get(RESTORED + client)) is not None:
            wanted = [ts.key for ts in stand_in.wants_what]
            type(s).client_desires_keys(s, keys=wanted, client=client)
            self._release(client)
        self._cancel(client=client, **message)

    def _release(self, client: str) -> None:
        s = self.scheduler
        stand_in = s.clients.get(RESTORED + client)
        if stand_in is not None:
            s.client_releases_keys(
                keys=[ts.key for ts in stand_in.wants_what], client=stand_in.client_key
            )
            del s.clients[stand_in.client_key]

    def give_up(self) -> None:
        """Release what those clients wanted that have not come back."""
        for client in list(self.missing):
            del self.missing[client]
            self._release(client)
            self.recorder.forget_client(client)


def _may_start(ts: Any) -> bool:
    return ts.state == "released" and ts.run_spec is not None and bool(ts.priority)
