"""Tasks that keep what they returned, and change it later: who has it already is not affected."""

import ctypes

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from distributed import wait

from dask_marsched.store import array_memory
from tests.host.worker.sharing import MIB, Sharing, Workers, cluster, total

N = MIB  # numbers
pytestmark = pytest.mark.skipif(not array_memory.native, reason="there was no compiler")

#: In each worker: what tasks have stored away.
KEPT: dict[str, object] = {}


def negate_in_place(x):
    x[:] = -1


def negate_by_out(x):
    np.negative(x, out=x)


def negate_by_address(kept):
    array, address = kept
    ctypes.memset(address, 0xBF, array.nbytes)  # small negative numbers


def negate_bytes(view):
    view[:] = np.full(N, -1.0).tobytes()


def negate_series(series):
    series.array[:] = -1.0


def negate_buffer(buffer):
    np.frombuffer(buffer, float)[:] = -1


#: What is stored away of an array, and how it is changed.
WAYS = {
    "array": (lambda x: x, negate_in_place),
    "view": (lambda x: x.reshape(2, -1)[:, ::2], negate_in_place),
    "transposed": (lambda x: x.reshape(2, -1).T, negate_in_place),
    "out": (lambda x: x, negate_by_out),
    "address": (lambda x: (x, x.ctypes.data), negate_by_address),
    "memoryview": (lambda x: memoryview(x).cast("B"), negate_bytes),
    "series": (lambda x: pd.Series(x, copy=False), negate_series),
    "arrow": (pa.py_buffer, negate_buffer),
}


def make(way, value):
    x = np.full(N, value)
    KEPT[way] = WAYS[way][0](x)
    return x


def change(way):
    WAYS[way][1](KEPT[way])


def forget(dask_worker):
    KEPT.clear()


@pytest.fixture(scope="module")
def client():
    with cluster(Sharing(cap=256 * MIB)) as made:
        yield made


@pytest.fixture
def workers(client):
    yield Workers(client)
    client.run(forget)


def made_here(workers, way):
    """Return a result whose task has kept it, made in shared memory, as soon as one is."""
    for i in range(50):
        before = workers[0]["made here"]
        x = workers.on(0, make, way, float(i + 1), key=f"{way}-{i}")
        assert workers.on(1, total, x).result() == (i + 1) * N
        if workers[0]["made here"] > before:
            return x, i + 1
    raise AssertionError("none was made in shared memory")


@pytest.mark.extended
@pytest.mark.parametrize("way", WAYS)
def test_a_peer_does_not_see_later_changes(workers, way):
    x, value = made_here(workers, way)
    workers.on(0, change, way).result()
    assert workers.on(1, total, x, key=f"{way}-later").result() == value * N
    # where it was made it is the same object, as in stock Dask
    assert workers.on(0, total, x, key=f"{way}-there").result() < value * N


@pytest.mark.parametrize("way", WAYS)
def test_a_later_request_gets_the_current_content(workers, way):
    for i in range(50):
        before = workers[0]
        x = workers.on(0, make, way, 1.0, key=f"{way}later-{i}")
        wait(x)
        after = workers[0]
        if after["ahead"] > before["ahead"] and after["made here"] > before["made here"]:
            break  # published before anybody asked
        workers.on(1, total, x).result()
    else:
        raise AssertionError("none was published before anybody asked")
    there = workers.on(0, changed_total, way, x, key=f"{way}-changed").result()
    assert there < N
    assert workers.on(1, total, x, key=f"{way}-asked").result() == there


def changed_total(way, x):
    change(way)
    return total(x)


def test_an_array_in_recycled_memory_is_shared_again(workers):
    x, _ = made_here(workers, "array")
    workers.on(0, change, "array").result()
    workers.client.run(forget)
    del x
    for i in range(20):
        x = workers.on(0, make, "array", float(i), key=f"array-again-{i}")
        assert workers.on(1, total, x).result() == i * N
    assert workers[1]["fallbacks"] == {}
