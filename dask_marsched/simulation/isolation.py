"""Where a simulation runs: here, in a thread of its own, or in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import cloudpickle
import dask

T = TypeVar("T")


def call(function: Callable[[], T], isolated: bool | None) -> T:
    """Call a function where its result does not depend on this process.

    Sets of strings are iterated in an order that follows from the process's hash seed, and so do
    some of distributed's choices. A process of its own has a fixed one.

    Parameters
    ----------
    function
        What to call; pickled if another process is to call it.
    isolated
        True for another process, False for this one, None for this one only if its hash seed is
        fixed (``PYTHONHASHSEED``).
    """
    if isolated is None:
        isolated = os.environ.get("PYTHONHASHSEED", "random") == "random"
    if isolated:
        return _in_process(function)
    if _loop_is_running():  # in a notebook, say; the simulation needs a loop of its own
        return _in_thread(function)
    return function()


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(function: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="marsched-twin")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _in_process(function: Callable[[], T]) -> T:
    code = "from dask_marsched.simulation.isolation import child; child()"
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=cloudpickle.dumps((dask.config.config, function)),
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the simulating process ended with code {done.returncode}")
    error, result = cloudpickle.loads(done.stdout)
    if error is not None:
        raise error
    answer: T = result
    return answer


def child() -> None:
    """Call the function that stands on the standard input, and answer on the standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints must not mix with the answer
    config, function = cloudpickle.load(sys.stdin.buffer)
    answer: tuple[Any, Any]
    try:
        with dask.config.set(config):
            answer = (None, function())
    except Exception as error:
        answer = (error, None)
    with out:
        out.write(cloudpickle.dumps(answer))
