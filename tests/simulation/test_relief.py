"""In the last wave of what is withheld, operands leave a worker that has much more to do."""

from collections.abc import Sequence

import pytest

from benchmarks import workloads
from dask_marsched.policies.placement import Candidate, MostBytes
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from dask_marsched.simulation import SimulationReport, simulate


class WithoutRelief(MostBytes):
    def relief(
        self, chosen: Candidate, others: Sequence[Candidate], bandwidth: float
    ) -> int | None:
        return None


def run(name: str, placement: MostBytes) -> SimulationReport:
    report = simulate(
        list(workloads.get(name).build(workloads.Parameters(size=4))),
        workers=16,
        timeline=False,
        policy=MarsSchedulerPlugin(placement=placement, fusion="off"),
    )
    assert report.plugin["exceptions"] == {}
    return report


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:Increasing number of chunks")  # that is what products do
@pytest.mark.parametrize("name", ["covariance", "gram-matrix"])
def test_who_has_much_to_do_at_the_end_is_relieved(name: str) -> None:
    relieved, other = run(name, MostBytes()), run(name, WithoutRelief())
    assert relieved.makespan < 0.97 * other.makespan
    assert relieved.bytes_moved < 1.1 * other.bytes_moved
    assert relieved.peak_memory < 1.1 * other.peak_memory
