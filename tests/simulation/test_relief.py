"""Once nothing is withheld, operands leave a worker that has much more to do than others."""

from collections.abc import Sequence

import pytest

from dask_marsched.bench import workloads
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
        policy=MarsSchedulerPlugin(placement=placement),
    )
    assert report.plugin["exceptions"] == {}
    return report


@pytest.mark.filterwarnings("ignore:Increasing number of chunks")  # that is what products do
def test_who_has_much_to_do_at_the_end_is_relieved() -> None:
    relieved, other = run("covariance", MostBytes()), run("covariance", WithoutRelief())
    assert relieved.makespan < 0.95 * other.makespan
    assert relieved.bytes_moved < 1.1 * other.bytes_moved
    assert relieved.peak_memory < 1.1 * other.peak_memory
