"""Packing tasks into messages: all arrive once, in order."""

import pickle
from typing import Any

from distributed.protocol.serialize import ToPickle
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.host.batched_messages import COMPUTE, LEAST_TASKS, pack_tasks, unpack_tasks


def task(number: int) -> dict[str, Any]:
    return {"op": "compute-task", "key": f"x-{number}", "run_spec": ToPickle(number)}


def unpacked(messages: list[dict[str, Any]]) -> list[Any]:
    found: list[Any] = []
    for message in messages:
        if message["op"] == COMPUTE:
            tasks = pickle.loads(pickle.dumps(message["tasks"].data))
            found += [(m["key"], m["run_spec"]) for m in unpack_tasks(message["fields"], tasks)]
        elif message["op"] == "compute-task":
            found.append((message["key"], message["run_spec"].data))
        else:
            found.append(message["op"])
    return found


@given(st.lists(st.booleans(), max_size=20))
def test_all_arrive_once_and_in_order(kinds):
    messages = [task(i) if other else {"op": "free-keys"} for i, other in enumerate(kinds)]
    expected = [(f"x-{i}", i) if other else "free-keys" for i, other in enumerate(kinds)]
    packed = pack_tasks(messages)
    assert unpacked(packed) == expected


def test_a_few_travel_alone():
    few, many = [[task(i) for i in range(n)] for n in (LEAST_TASKS - 1, LEAST_TASKS)]
    assert pack_tasks(few) == few
    assert [m["op"] for m in pack_tasks(many)] == [COMPUTE]
