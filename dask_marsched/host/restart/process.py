"""Handles what belongs to a scheduler's process: counters of runs, its end and its new start."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from distributed.scheduler import TaskState
from distributed.shuffle import _core as shuffles
from distributed.worker_state_machine import RUN_ID_SENTINEL

from dask_marsched.host.contract import demand, misfits_of_function

logger = logging.getLogger("dask_marsched")

#: Call that restarts a scheduler.
RESTART = "marsched_restart"
#: Seconds in which the answer to the call leaves.
ANSWERED = 0.2
#: Why `dask scheduler` closes on SIGTERM.
_TERMINATED = f"signal-{signal.SIGTERM:d}"
#: The most runs of tasks and of shuffles in one scheduler's life.
_RUNS, _SHUFFLES = 2**40, 2**12


def misfits() -> list[str]:
    """Return what is not as expected in the counters of distributed."""
    found = []
    if not isinstance(getattr(TaskState, "_run_id_iterator", None), itertools.count):
        found.append("TaskState._run_id_iterator is no counter")
    if _shuffle_counter() is None:
        found.append("ShuffleRunSpec.run_id has no counter")
    return found


def _shuffle_counter() -> Any:
    spec = getattr(shuffles, "ShuffleRunSpec", None)
    fields = {field.name: field for field in dataclasses.fields(spec)} if spec is not None else {}
    args = getattr(getattr(fields.get("run_id"), "default_factory", None), "args", ())
    return args[0] if args and isinstance(args[0], itertools.count) else None


def begin_after(starts: int) -> None:
    """Give runs the numbers of a scheduler that has started so often with its journal."""
    state: Any = TaskState
    # A scheduler that runs already may be further.
    state._run_id_iterator = itertools.count(max(starts * _RUNS, next_run()))
    counter = _shuffle_counter()
    # A count cannot be set, but it is fast.
    while next(counter) < starts * _SHUFFLES:
        pass


#: The run of data, and of copies from other workers.
NO_RUN = RUN_ID_SENTINEL


def next_run() -> int:
    """Return a number above those of all runs so far, and below those to come."""
    state: Any = TaskState
    number: int = next(state._run_id_iterator)
    return number


def why_not_again(scheduler: Any) -> str | None:
    """Return why a scheduler's process cannot be started anew, None if it can."""
    is_command = "scheduler" in " ".join(sys.orig_argv)
    if "distributed.cli.dask_scheduler" not in sys.modules or not is_command:
        return "this scheduler runs in the process of another program, not of `dask scheduler`"
    addresses = getattr(scheduler, "_start_address", [])
    if not addresses or any(str(address).endswith(":0") for address in addresses):
        return "its port was chosen at random: start it with --port, so that it can be found again"
    return None


def start_again() -> None:
    """Replace this process; never returns."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def outlive_termination(scheduler: Any, write: Callable[[], Awaitable[bool]]) -> None:
    """End the process on SIGTERM as a kill would: workers and clients wait for the next scheduler.

    Service managers, Kubernetes and a machine that shuts down send this signal, and start the
    scheduler again. On Ctrl-C it closes the cluster as in stock Dask.

    ``write`` makes the journal durable, and returns whether it is. Raises a RuntimeError, and
    changes nothing, if the scheduler's ``close`` is not as expected.
    """
    found = misfits_of_function("Scheduler", scheduler, "close", ("timeout", "reason"))
    demand(found, "no journal is kept")

    async def close(timeout: float | None = None, reason: str = "unknown") -> None:
        if reason == _TERMINATED and await write():
            logger.warning("Terminated: workers and clients wait for the next scheduler")
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(128 + signal.SIGTERM)  # the first process of a container outlives the signal
        await type(scheduler).close(scheduler, timeout=timeout, reason=reason)

    scheduler.close = close


def restore_close(scheduler: Any) -> None:
    """Undo `outlive_termination`. Idempotent."""
    vars(scheduler).pop("close", None)
