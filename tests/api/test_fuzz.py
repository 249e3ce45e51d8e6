"""The API's description, fuzzed against a scheduler that computes: `schemathesis`."""

import importlib.util
import os
import re
import subprocess
import sys
import threading

import dask.array as da
import numpy as np
import pytest
from distributed import Client, Event
from distributed.client import FutureCancelledError

import dask_marsched
from tests.processes import dask_command

#: Cases for each operation, and schemathesis' phases; `make fuzz` takes more of both.
CASES = os.environ.get("MARSCHED_FUZZ_CASES", "3")
PHASES = os.environ.get("MARSCHED_FUZZ_PHASES", "examples,fuzzing")

lacking = importlib.util.find_spec("schemathesis") is None


class Computing(threading.Thread):
    """Computes one graph after another; others may cancel the first, which never ends by itself."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.done = threading.Event()
        self.finished = 0
        # With `meta` it is not called here to find out.
        x = da.ones((60, 60), chunks=20).map_blocks(held, dtype=float, meta=np.ones((0, 0)))
        self.first = client.compute((x + x.T).sum())
        wait_for_tasks(client)

    def run(self) -> None:
        # No more than the scheduler remembers: the first is graph 0.
        while not self.done.wait(0.5) and self.finished < 90:
            x = da.random.random((120, 120), chunks=20)
            try:
                self.client.compute((x + x.T).sum()).result()
            except FutureCancelledError:
                continue
            self.finished += 1


def held(block):
    Event("fuzzed").wait()
    return block


def wait_for_tasks(client: Client) -> None:
    while not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
        pass


@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.skipif(lacking, reason="schemathesis is not installed: pip install '.[fuzz]'")
@pytest.mark.parametrize("writable", [False, True], ids=["reading", "writing"])
def test_fuzz(start, start_scheduler, tmp_path, writable):
    """No 5xx, and each answer is one that is described; the scheduler computes meanwhile."""
    routes = ["distributed.http.health"] + ["distributed.http.scheduler.api"] * writable
    environment = {"DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": repr(routes)}
    address, process = start_scheduler(
        "--preload", "dask_marsched", "--dashboard-address", "127.0.0.1:0", env=environment
    )
    start(*dask_command("worker", address, "--nthreads", "20", "--no-nanny", "--no-dashboard"))
    port = process.wait_for(r"dashboard at:\s+http://[^:]+:(\d+)")[1]
    root = f"http://127.0.0.1:{port}/marsched/api/v1"
    with Client(address) as client:
        computing = Computing(client)
        computing.start()
        client.wait_for_workers(1)
        command = [
            sys.executable, "-W", "ignore", "-m", "schemathesis.cli", "run",
            f"{root}/openapi.json", "--checks", "all", "-n", CASES, "--seed", "1",
            "--generation-database", "none", "--no-color", "--phases", PHASES,
        ]  # fmt: skip
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        computing.done.set()
        Event("fuzzed", client=client).set()
        computing.join()
        status = dask_marsched.status(client)
        cancelled = computing.first.cancelled()
        assert cancelled or computing.first.result() == 7200
    assert run.returncode == 0, run.stdout + run.stderr
    cases = int(re.search(r"(\d+) generated", run.stdout)[1])
    print(f"{cases} cases")  # shown with -s
    assert cases > 10 * int(CASES)
    assert computing.finished > 0
    assert cancelled == writable
    assert status.exceptions == {}, status.last_exception
