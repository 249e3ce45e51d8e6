"""Injects faults: kills and stops of processes, cut networks, broken connections, restarts."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client

from benchmarks.hosts import network_namespaces
from dask_marsched.bench.probes import Background

#: Mean time between two kills of a worker, stops of one, cuts of the network, and kills of the
#: scheduler, seconds.
KILL_EVERY, STOP_EVERY, CUT_EVERY, RESTART_EVERY = 10.0, 60.0, 150.0, 60.0
#: Mean time between two broken connections of workers to a scheduler that lives, seconds.
DISCONNECT_EVERY = 60.0
#: Durations to draw from, seconds. The longest exceed the scheduler's timeout for heartbeats in
#: `chaos_run`, and Dask's timeout for connections.
STOPS = (1.0, 2.0, 4.0, 8.0, 45.0)
CUTS = (2.0, 5.0, 10.0, 40.0)
#: Least age of a worker that is killed, seconds: a nanny gives up if its worker dies while it
#: starts, in stock Dask too.
_SETTLED = 3.0


class FaultInjector(Background):
    """Injects faults at random from a thread.

    Parameters
    ----------
    client
        Of the cluster.
    hosts
        Hosts whose network can be cut; empty for none.
    restart
        Kills the scheduler, and starts it again.
    rng
        Draws victims and times.
    every
        Mean time between two kills, seconds; the other faults in proportion.

    Attributes
    ----------
    counts : Counter
        By kind: `kill`, `stop`, `cut`, `disconnect`, `restart`.
    log : list of str
        A line for each fault with its time.
    """

    def __init__(
        self,
        client: Client,
        hosts: Sequence[network_namespaces.Host],
        restart: Callable[[], None],
        rng: random.Random,
        every: float,
    ) -> None:
        super().__init__()
        self.client = client
        self.hosts = hosts
        self._restart = restart
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        scale = every / KILL_EVERY
        self._every = {
            "kill": every,
            "stop": STOP_EVERY * scale,
            "disconnect": DISCONNECT_EVERY * scale,
            "restart": RESTART_EVERY * scale,
        }
        if hosts:
            self._every["cut"] = CUT_EVERY * scale
        self._seen: dict[int, float] = {}
        self._ends: list[tuple[float, Callable[[], None]]] = []
        self._until = {"cut": 0.0}
        self._start = now = time.monotonic()
        self._due = {what: now + self._until_next(what) for what in self._every}

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for _at, end in self._ends:
            end()

    def _until_next(self, what: str) -> float:
        return self.rng.expovariate(1 / self._every[what])

    def _turn(self) -> float:
        now = time.monotonic()
        for over in [each for each in self._ends if each[0] <= now]:
            self._ends.remove(over)
            over[1]()
        for what in [what for what, at in self._due.items() if at <= now]:
            self._due[what] = now + self._until_next(what)
            getattr(self, what)(now)
        return 0.1

    def _worker(self) -> tuple[str, int] | None:
        """Choose one of the workers that have been there for a while."""
        try:
            there: dict[str, int] = self.client.sync(
                self.client.run_on_scheduler, _processes, callback_timeout=30
            )
        except OSError:  # the scheduler is away, or a time is over
            return None
        now = time.monotonic()
        self._seen = {pid: self._seen.get(pid, now) for pid in there.values()}
        settled = [(a, p) for a, p in sorted(there.items()) if now - self._seen[p] > _SETTLED]
        return self.rng.choice(settled) if settled else None

    def _note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._start:8.1f} {what}")

    def kill(self, now: float) -> None:
        """Kill a worker process."""
        chosen = self._worker()
        if chosen is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chosen[1], signal.SIGKILL)
                self.counts["kill"] += 1
                self._note(f"kill {chosen[0]}")

    def stop(self, now: float) -> None:
        """Stop a worker process for a while."""
        chosen = self._worker()
        if chosen is None:
            return
        address, pid = chosen
        seconds = self.rng.choice(STOPS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            self.counts["stop"] += 1
            self._note(f"stop {address} for {seconds:g} s")
            self._ends.append((now + seconds, lambda: _go_on(pid)))

    def cut(self, now: float) -> None:
        """Cut the wire between the hosts for a while."""
        if now < self._until["cut"]:
            return
        seconds = self.rng.choice(CUTS)
        self._until["cut"] = now + seconds
        for host in self.hosts:
            host.isolate(True)
        self.counts["cut"] += 1
        self._note(f"cut for {seconds:g} s")
        self._ends.append((now + seconds, self._heal))

    def disconnect(self, now: float) -> None:
        """Break the connection of a worker to the scheduler; both go on."""
        chosen = self._worker()
        if chosen is not None:
            with contextlib.suppress(OSError):  # it has just died
                self.client.run(_disconnect, workers=[chosen[0]], on_error="ignore")
                self.counts["disconnect"] += 1
                self._note(f"disconnect {chosen[0]}")

    def restart(self, now: float) -> None:
        """Kill the scheduler, and start it again."""
        self._note("restart")
        self._restart()
        self.counts["restart"] += 1

    def _heal(self) -> None:
        for host in self.hosts:
            host.isolate(False)


def _go_on(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _disconnect(dask_worker: Any = None) -> None:
    dask_worker.batched_stream.comm.abort()


def _processes(dask_scheduler: Any = None) -> dict[str, int]:
    return {ws.address: ws.pid for ws in dask_scheduler.workers.values()}
