"""Runs workloads through Frisky's client, in Frisky's own environment.

Started by `benchmarks.frisky.cluster` with the scheduler's address. It reads a request a line from
standard input and answers each with a line of JSON. ``PYTHONPATH`` names the root of this
repository, because the package is not installed in that environment.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import workloads
from dask_marsched.bench.metrics import digest


def answer(client: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Run the workload of a request; return its wall time and the digest of its results.

    Parameters
    ----------
    client : frisky.Client
        Connected to the scheduler.
    request : dict
        Name of the workload, ``size``, ``chunk_bytes`` and ``scratch``.
    """
    workload = workloads.get(request["workload"])
    parameters = workloads.Parameters(
        request["size"], request["chunk_bytes"], Path(request["scratch"])
    )
    missing = workload.missing()
    if missing:
        return {"error": f"not run: needs {', '.join(missing)}"}
    inputs = workload.inputs(parameters)
    collections = None if workload.persist else workload.expression(parameters, *inputs)
    gc.collect()
    start = time.perf_counter()
    if collections is None:
        inputs = tuple(client.persist(list(inputs)))
        collections = workload.expression(parameters, *inputs)
    results = client.gather(client.compute(list(collections)))
    return {"seconds": time.perf_counter() - start, "digest": digest(results)}


def main() -> None:
    """Answer requests until the standard input ends."""
    import frisky  # type: ignore[import-not-found]  # another environment has it

    replies, sys.stdout = sys.stdout, sys.stderr  # what else prints must not get in between
    client = frisky.Client(sys.argv[1])
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        try:
            reply = answer(client, json.loads(line))
        except Exception as error:
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        gc.collect()
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
