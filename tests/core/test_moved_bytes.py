import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.core.moved_bytes import OTHERS, MovedBytes


def test_bytes_between_workers():
    moved = MovedBytes()
    moved.add("a", "b", 10)
    moved.add("b", "a", 1)
    moved.add("a", "b", 5)
    assert moved.table(8, {}) == {
        "between": "workers",
        "names": ["a", "b"],
        "bytes": [[0, 15], [1, 0]],
    }
    assert moved.total == 16


def test_many_workers_are_grouped_by_host():
    moved = MovedBytes()
    for i in range(20):
        moved.add(f"w{i}", f"w{(i + 1) % 20}", 1)
    hosts = {f"w{i}": f"h{i // 10}" for i in range(20)}
    found = moved.table(8, hosts)
    assert found == {"between": "hosts", "names": ["h0", "h1"], "bytes": [[9, 1], [1, 9]]}


def test_too_many_hosts_join_those_that_move_least():
    moved = MovedBytes()
    for i in range(10):
        moved.add(f"w{i}", "sink", 1 + i)
    found = moved.table(4, {name: name for name in [*(f"w{i}" for i in range(10)), "sink"]})
    assert found["names"] == [OTHERS, "sink", "w8", "w9"]
    assert sum(map(sum, found["bytes"])) == moved.total == 55


def test_removed_workers_count_as_others_and_their_place_is_reused():
    moved = MovedBytes()
    moved.add("a", "b", 10)
    moved.remove("a")
    moved.remove("never there")
    moved.add("c", "b", 1)
    found = moved.table(8, {})
    assert found["names"] == [OTHERS, "b", "c"]
    assert found["bytes"] == [[0, 10, 0], [0, 0, 0], [0, 1, 0]]


workers = st.sampled_from([f"w{i}" for i in range(12)])


@given(
    st.lists(st.tuples(workers, workers, st.integers(0, 100), st.booleans()), max_size=60),
    st.integers(2, 20),
)
def test_bytes_are_conserved_when_workers_come_and_go(steps, most):
    moved = MovedBytes()
    for sender, receiver, nbytes, leaves in steps:
        if leaves:
            moved.remove(sender)
        else:
            moved.add(sender, receiver, nbytes)
    found = moved.table(most, {f"w{i}": f"h{i % 5}" for i in range(12)})
    assert len(found["names"]) <= most
    assert sum(map(sum, found["bytes"])) == pytest.approx(moved.total)
