#!/usr/bin/env bash
# A scheduler that preloads the plugin, workers, a program that knows nothing of it, and the
# status, each a command of its own, as on a cluster. Here they all run on this machine:
#
#     bash examples/cluster_from_command_line.sh
set -euo pipefail

directory=$(mktemp -d)
finish() {
    # The scheduler first: it tells its workers to end.
    kill "$scheduler" 2>/dev/null && wait "$scheduler" || true
    kill $(jobs -p) 2>/dev/null || true
    wait
    rm -rf "$directory"
}
trap finish EXIT
# The scheduler writes its address there; workers and clients wait for that.
export DASK_SCHEDULER_FILE="$directory/scheduler.json"
export DASK_TEMPORARY_DIRECTORY="$directory"

dask scheduler --host 127.0.0.1 --port 0 --no-dashboard --scheduler-file "$DASK_SCHEDULER_FILE" \
    --preload dask_marsched --marsched-assignment units \
    --marsched-config quota.fraction=0.6 &
scheduler=$!
dask worker --scheduler-file "$DASK_SCHEDULER_FILE" --nworkers 2 --nthreads 1 --no-dashboard &

python - <<'PROGRAM'
import os

import dask.array as da
from distributed import Client

with Client(scheduler_file=os.environ["DASK_SCHEDULER_FILE"]) as client:
    client.wait_for_workers(2, timeout=60)
    x = da.random.default_rng(seed=1).random((4_000, 4_000), chunks=(500, 500))
    print(f"mean: {(x + x.T).mean().compute():.4f}")
PROGRAM

address=$(python -c 'import json, os; print(json.load(open(os.environ["DASK_SCHEDULER_FILE"]))["address"])')
dask marsched status "$address"
