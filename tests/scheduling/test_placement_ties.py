"""If workers hold equally many input bytes, the one where the result is read is chosen."""

from __future__ import annotations

from distributed import Client, Event, Scheduler, Worker, wait

from tests.harness import check, planned_cluster
from tests.scheduling.test_unneeded_replicas import joined, runs, submit, value_at

TWO_WORKERS = [("127.0.0.1", 2)] * 2


async def step_of_a_running_sum(c: Client, s: Scheduler, at: Worker, other: Worker) -> None:
    """What is read next lies at a worker that is busy and holds more than the other."""
    following = c.persist(value_at(at, "following", 3), optimize_graph=False)
    await wait(following)
    (gate,) = submit(c, joined("gate", value_at(at, "more", 4), gate="go", at=at))
    await runs(at, "gate")
    step = joined("step", value_at(other, "so far", 1), value_at(at, "chunk", 2))
    futures = submit(c, step, joined("next step", step, following))
    assert await c.gather(futures) == [300_000, 600_000]
    await Event("go").set()
    assert await gate == 400_000
    check(s)
    assert not other.transfer_incoming_log


@planned_cluster(TWO_WORKERS)
async def test_a_tie_goes_to_the_first_worker_if_it_has_the_next_chunk(c, s, a, b):
    await step_of_a_running_sum(c, s, a, b)


@planned_cluster(TWO_WORKERS)
async def test_a_tie_goes_to_the_second_worker_if_it_has_the_next_chunk(c, s, a, b):
    await step_of_a_running_sum(c, s, b, a)
