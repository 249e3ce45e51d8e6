"""A plugin of pytest that measures each test on the cluster that the suite has started for it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from distributed import Client

from benchmarks.public import local_coiled
from benchmarks.public.local_coiled import RESULTS
from dask_marsched.bench import probes
from dask_marsched.bench.cluster import plugin_report, trim_memory

sys.modules["coiled"] = local_coiled
for _name in ("adlfs", "boto3", "gcsfs", "s3fs"):  # clouds, which no test that runs here needs
    sys.modules[_name] = MagicMock()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure a test's own call; its cluster was started in the set-up of its fixtures."""
    if not local_coiled.started:
        pytest.skip("the test starts its own cluster")
    with Client(local_coiled.started[-1], set_as_default=False) as client:
        pids = client.run(os.getpid)
        client.run(trim_memory)
        client.run(probes.reset_traffic)
        mapped = sum(client.run(probes.read_mapped).values())
        client.run_on_scheduler(probes.reset_probe)
        found: dict[str, Any] = {"test": item.nodeid, "error": None}
        used, start = probes.cpu_seconds(pids.values()), time.perf_counter()
        pss = probes.PssSampler(pids.values())
        try:
            with pss:
                yield
        except pytest.skip.Exception:  # the test skips itself
            found["error"] = "skipped"
            raise
        except BaseException as error:  # pytest's own, too
            found["error"] = f"{type(error).__name__}: {error}"[:300]
            raise
        finally:
            found["seconds"] = time.perf_counter() - start
            found["cpu"] = probes.cpu_seconds(pids.values()) - used - pss.spent
            found["pss"] = pss.peak
            found["restarted"] = client.run(os.getpid) != pids
            if not found["restarted"]:
                found["mapped"] = sum(client.run(probes.read_mapped).values()) - mapped
                between = probes.bytes_between_workers(client.run(probes.read_traffic))
                found["moved"] = between + found["mapped"]
            found["managed"], found["sent"] = client.run_on_scheduler(probes.read_probe)
            report = client.run_on_scheduler(plugin_report)
            found["exceptions"] = (report or {}).get("exceptions")
            with Path(os.environ[RESULTS]).open("a") as file:
                file.write(json.dumps(found) + "\n")
