"""How far off `progress` is with the time left, in virtual time: nothing here hangs on a clock.

``python -m tests.simulation.estimates [WORKLOAD...]`` prints the estimate by the time that is
really left, at some moments of each workload.
"""

import asyncio
import sys
from unittest import mock

from benchmarks import workloads as registry
from dask_marsched.monitoring import progress_feed
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import simulate

MOMENTS = (0.1, 0.25, 0.5, 0.75, 0.9)


class Watched(MarsSchedulerPlugin):
    """Looks five times a virtual second at how things stand."""

    def update_graph(self, scheduler, *, client, keys, tasks, **kwargs):
        super().update_graph(scheduler, client=client, keys=keys, tasks=tasks, **kwargs)
        self.watch = progress_feed.ProgressTracker(scheduler, keys)
        self.told = []
        scheduler.add_plugin(self.watch)
        self._look()

    def _look(self):
        loop = asyncio.get_running_loop()
        told = self.watch.look()
        self.told.append((loop.time(), told))
        if told["status"] in ("expected", "collected", "running"):
            loop.call_later(0.2, self._look)


def ratios(workload, size=6.0):
    """Return at each moment the estimate by what was left, None where it was not known."""
    parameters = registry.Parameters(size=size, chunk_bytes=64 * registry.MIB)
    collections = list(registry.get(workload).build(parameters))
    plugin = Watched(fusion="off")  # joined, it tells too little time
    clock = lambda: asyncio.get_running_loop().time()  # noqa: E731  # patched in
    with mock.patch.object(progress_feed, "time", clock):
        simulate(collections, workers=4, threads=2, policy=plugin, isolated=False, timeline=False)
    begin, end = plugin.told[0][0], plugin.told[-1][0]
    found = []
    for moment in MOMENTS:
        at = begin + moment * (end - begin)
        seen, told = min(plugin.told, key=lambda step: abs(step[0] - at))
        seconds = told["seconds"]
        found.append(None if seconds is None else seconds / (end - seen))
    return end - begin, found


def main(names):
    print("| workload | seconds | " + " | ".join(f"{moment:.0%}" for moment in MOMENTS) + " |")
    print("|---|---|" + "---|" * len(MOMENTS))
    for name in names:
        seconds, found = ratios(name)
        cells = ["unknown" if ratio is None else f"{ratio:.2f}" for ratio in found]
        print(f"| {name} | {seconds:.0f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or registry.names())
