"""Stands in for the package ``coiled``: its clusters are workers on this machine."""

from __future__ import annotations

import logging
import os
from typing import Any

import dask
from distributed import Client, LocalCluster

from dask_marsched.bench import probes
from dask_marsched.bench.cluster import policy_plugin

__version__ = "1.100"
#: The policy of all clusters that are started here.
POLICY = "MARSCHED_PUBLIC_POLICY"
#: The file to which a line of JSON is added for each test.
RESULTS = "MARSCHED_PUBLIC_RESULTS"
#: Clusters that have been started and not closed.
started: list[Cluster] = []


class Cluster(LocalCluster):
    """Workers with one thread and 2 GiB each, with the probes and a policy's plugin in place."""

    def __init__(self, name: str | None = None, n_workers: int = 4, **_: Any) -> None:
        # If a test restarts its workers twice, 15 s apart, the first would have them closed for
        # ever: Dask looks after that time whether they are back.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"})
        super().__init__(  # type: ignore[no-untyped-call]  # untyped there
            n_workers=n_workers,
            threads_per_worker=1,
            memory_limit="2GiB",
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        )
        with Client(self, set_as_default=False) as client:
            plugin = policy_plugin(os.environ[POLICY])
            if plugin is not None:
                client.register_plugin(plugin)
            client.register_plugin(probes.SchedulerProbe(), name=probes.PROBE)
            client.register_plugin(probes.TrafficMeter(), name=probes.METER)
            client.run(_import_arrays)
        started.append(self)

    def close(self, *args: Any, **kwargs: Any) -> Any:
        """Close the cluster, which is not measured any more."""
        if self in started:
            started.remove(self)
        return super().close(*args, **kwargs)


def _import_arrays() -> None:
    """Import what stock Dask's workers import in their first task. Runs on the workers."""
    import dask.array
    import dask.dataframe  # noqa: F401  # only to have it imported
