import dask
import pytest

from dask_marsched.simulation.cluster.recorder import Recorder
from dask_marsched.simulation.explain.memory_need import (
    PROCESS_NBYTES,
    MemoryNeed,
    memory_need,
    round_up_to_orderable,
)
from tests.recorded_reports import FACTS

MiB = 2**20


def recorded(events):
    recorder = Recorder(0.0, timeline=True)
    for worker in (0, 1):
        recorder.joined(worker)
    for method, *arguments in events:
        getattr(recorder, method)(*arguments)
    return recorder.report(cluster={"workers": 2}, tasks=3, end=9.0, thread_seconds=9.0, **FACTS)


def test_running_tasks_count_with_output_and_intermediate_results():
    report = recorded(
        [
            ("memory_changed", 1.0, 0, "a", 100),
            ("executed", "a", 0, 0.0, 1.0),
            ("memory_changed", 3.0, 0, "b", 30),
            ("executed", "b", 0, 1.0, 3.0),
            ("memory_changed", 3.5, 1, "c", 50),
            ("executed", "c", 1, 2.0, 3.5),
            ("memory_changed", 4.0, 0, "a", -100),
        ]
    )
    assert memory_need(report, {}) == MemoryNeed(held=130, total=130)
    assert memory_need(report, {"b": 7}) == MemoryNeed(held=130, total=137)
    assert memory_need(report, {"c": 200}) == MemoryNeed(held=130, total=250)


def test_the_limit_follows_from_the_thresholds():
    need = MemoryNeed(held=600 * MiB, total=600 * MiB)
    memory = "distributed.worker.memory."
    with dask.config.set({memory + "target": 0.6, memory + "spill": 0.7, memory + "pause": 0.8}):
        assert need.limit == pytest.approx((600 * MiB + PROCESS_NBYTES) / 0.7, rel=1e-6)
    with dask.config.set({memory + "target": 0.5, memory + "spill": False, memory + "pause": 0.9}):
        assert need.limit == pytest.approx(600 * MiB / 0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("nbytes", "ordered"), [(1, 128), (128, 128), (129, 192), (193, 256), (1025, 1536)]
)
def test_amounts_that_can_be_ordered(nbytes, ordered):
    assert round_up_to_orderable(nbytes * MiB) == ordered * MiB
    assert round_up_to_orderable(ordered * MiB + 1) > ordered * MiB
