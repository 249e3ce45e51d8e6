"""Kills the scheduler in the middle of a computation, which then goes on to the right result.

python examples/scheduler_restart.py
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from distributed import as_completed

from dask_marsched import Client, status

TASKS = 60


def square(x, directory):
    """Take a while, and leave a line in a file of the worker."""
    time.sleep(0.2)
    with open(f"{directory}/calls-{os.getpid()}", "a") as calls:
        calls.write(f"{x}\n")
    return x * x


def dask(*arguments):
    """Start a command of Dask."""
    return subprocess.Popen([sys.executable, "-m", "dask", *arguments])


def main():
    """Compute on a cluster, kill its scheduler, and wait for the result."""
    port = str(random.randrange(20_000, 30_000))
    with tempfile.TemporaryDirectory() as directory:
        where = ("--host", "127.0.0.1", "--port", port, "--no-dashboard")
        scheduler = dask(
            "marsched", "supervise", *where, "--marsched-journal", f"{directory}/journal"
        )
        address = f"tcp://127.0.0.1:{port}"
        size = ("--nworkers", "2", "--nthreads", "1", "--no-dashboard")
        workers = dask("worker", address, *size, "--local-directory", directory)
        try:
            with Client(address) as client:
                client.wait_for_workers(2)
                squares = client.map(square, range(TASKS), directory=directory)
                total = client.submit(sum, squares)
                for done, _ in enumerate(as_completed(squares), 1):
                    if done == TASKS // 3:
                        break
                os.kill(client.run_on_scheduler(os.getpid), signal.SIGKILL)
                print(f"The scheduler was killed when {done} of {TASKS} tasks had finished.")
                print(f"Sum of squares: {total.result()}, as expected: ", end="")
                print(total.result() == sum(x * x for x in range(TASKS)))
                calls = sum(len(f.read_text().split()) for f in Path(directory).glob("calls-*"))
                print(f"{calls} calls of a function for {TASKS} tasks.")
                print(status(client))
        finally:
            for process in (workers, scheduler):
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
