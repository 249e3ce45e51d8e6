"""The worker's state machine of the twin decides as distributed's own does."""

import dask.array as da
import pytest

from dask_marsched.host.twin.worker_state import TwinWorkerState, state_machine
from dask_marsched.simulation import simulate


@pytest.mark.parametrize("policy", ["stock", "default"])
def test_a_simulation_is_the_same_with_distributed_s_own(policy):
    # What is validated runs on distributed's own: its logs tell what went wrong.
    x = da.ones((6000, 6000), chunks=1000)
    faults = [(0.02, "kill", 1), (0.03, "join", 1)]
    plain, checked = (
        simulate((x + x.T).sum(), policy=policy, faults=faults, validate=validate, isolated=False)
        for validate in (False, True)
    )
    assert plain.tasks_recomputed > 0
    assert plain.bytes_moved > 0
    assert plain.to_dict(timeline=True) == checked.to_dict(timeline=True)


def test_it_keeps_no_logs():
    state = state_machine("tcp://10.0.0.1:1", 1, 2**30, {}, validate=False)
    assert isinstance(state, TwinWorkerState)
    state.log.append("something")
    state.stimulus_log.append("something")
    assert not state.log
    assert not state.stimulus_log
