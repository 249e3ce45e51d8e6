"""How the working space of operands is measured, and what it does to later ones."""

import gc
import operator

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Event, Future, wait, worker_client
from distributed.scheduler import TaskPrefix
from distributed.utils_test import async_poll_for, inc

from dask_marsched.policies.memory_needs import OperandKind
from dask_marsched.policies.quota import MemoryNeed, MemoryRequest
from tests.harness import planned_cluster
from tests.worker.quota import (
    MB,
    ONE,
    TWO_THREADS,
    admission_of,
    array,
    assert_nothing_is_left,
    counts_of,
    gated,
    known,
    leave_free,
    opener,
    with_quota,
)
from tests.worker.test_eviction import a_fused_reader


@planned_cluster(ONE, plugin=with_quota)
async def test_a_released_input_does_not_hide_working_space(c, s, a):
    admission = admission_of(a)
    if not admission._meter.available:
        pytest.skip("this kernel does not tell")
    x = await c.scatter(array(1, 100 * MB), hash=False)
    assert a.data.evict(x.key) == 100 * MB
    leave_free(a, 250 * MB)
    await a_fused_reader(c, x.key)
    assert admission.needs.footprint(OperandKind("reader", 1, 100 * MB)) > 180 * MB


@planned_cluster(ONE, plugin=with_quota)
async def test_small_operands_are_measured_a_few_times_only(c, s, a):
    admission, kind = admission_of(a), OperandKind("array", 0, 0)
    admission.quota.limit = 100 * 64 * MB
    for n in range(5):
        await known(c, array, n)
    assert admission.needs.seen(kind) == 3
    admission.quota.limit = 5 * 64 * MB
    await known(c, array, 6)
    assert admission.needs.seen(kind) == 4


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_the_first_operand_of_a_kind_runs_alone(c, s, a):
    if not admission_of(a)._meter.available:
        pytest.skip("this kernel does not tell")
    leave_free(a, 400 * MB)
    # Only what is large for the worker counts, and this process may be large.
    nbytes = max(40 * MB, admission_of(a).quota.limit // 16 // 8 * 8)
    x = await c.scatter(array(1, nbytes), hash=False)
    leave_free(a, 10 * nbytes)
    assert admission_of(a).quota.limit / 16 < 2 * nbytes
    first = c.submit(gated, "gate", x, key="gated-1")
    await async_poll_for(lambda: bool(admission_of(a)._footprints.prefixes()), 5)
    second = c.submit(gated, "gate", x, key="gated-2")
    other = c.submit(np.sum, x, key="other")
    assert await other == nbytes / 8  # another kind goes first
    await async_poll_for(lambda: counts_of(a)["untried"] >= 1, 5)
    assert [ts.key for ts in a.state.executing] == ["gated-1"]
    await Event("gate").set()
    await wait([first, second])
    found = counts_of(a)
    assert found["deferrals"] == found["forced"] == 0


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_what_a_worker_has_died_of_runs_alone_until_it_is_measured(c, s, a):
    if not admission_of(a)._meter.available:
        pytest.skip("this kernel does not tell")
    leave_free(a, 400 * MB)
    s.task_prefixes["gated"] = TaskPrefix("gated")
    s.task_prefixes["gated"].suspicious = 1
    futures = [c.submit(gated, "gate", key=f"gated-{n}", nbytes=8) for n in range(2)]
    assert await c.submit(inc, 1) == 2  # another kind goes first
    await async_poll_for(lambda: counts_of(a)["untried"] >= 1, 5)
    assert [ts.key for ts in a.state.executing] == ["gated-0"]
    await Event("gate").set()
    await wait(futures)
    found = counts_of(a)
    assert found["deferrals"] == found["forced"] == 0


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_the_first_operand_of_a_kind_may_wait_for_the_second(c, s, a, monkeypatch):
    monkeypatch.setattr("dask_marsched.worker.admission.PATIENCE", 0)
    x = await c.scatter(array(1, 40 * MB), hash=False)
    leave_free(a, 400 * MB)
    blocked = c.submit(gated, "gate", x, key="pair-1")
    await async_poll_for(lambda: bool(a.state.executing), 5)
    opening = c.submit(opener, "gate", 8, x, key="pair-2")
    await wait([blocked, opening])


def nested(x, depth):
    if not depth:
        return x.nbytes
    with worker_client() as client:
        return client.submit(nested, Future("x", client), depth - 1).result()


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_a_seceded_operand_does_not_hold_back_others_of_its_kind(c, s, a, monkeypatch):
    monkeypatch.setattr("dask_marsched.worker.admission.PATIENCE", 3600)
    if not admission_of(a)._meter.available:
        pytest.skip("this kernel does not tell")
    leave_free(a, 400 * MB)
    nbytes = max(40 * MB, admission_of(a).quota.limit // 16 // 8 * 8)
    x = c.submit(array, 1, nbytes, key="x")
    await wait(x)
    leave_free(a, 10 * nbytes)
    assert await c.submit(nested, x, 2) == nbytes
    assert_nothing_is_left(a)


@planned_cluster(ONE, plugin=with_quota)
async def test_working_space_is_released_if_inputs_cannot_be_read(c, s, a, monkeypatch):
    async def fails(ts):
        raise ZeroDivisionError("on purpose")

    admission = admission_of(a)
    x = c.submit(gated, "gate", key="x")
    await async_poll_for(lambda: "x" in a.active_keys, 5)  # its own inputs have been read
    admission.quota.grant(MemoryRequest("x", MemoryNeed(1, 2, 3)))
    monkeypatch.setattr(admission.host, "_load", fails)
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        await admission.host._execute("x", stimulus_id="test")
    assert admission.quota.grants == {"x": MemoryNeed(output=2)}
    await Event("gate").set()
    await wait(x)
    assert_nothing_is_left(a)


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_working_space_is_learned(c, s, a):
    if not admission_of(a)._meter.available:
        pytest.skip("this kernel does not tell")

    def reducing(n):
        return float(np.ones(50 * MB // 8).sum()) + n

    await wait(c.map(reducing, range(3)))
    needs, kind = admission_of(a).needs, OperandKind("reducing", 0, 0)
    assert needs.seen(kind) == 3
    assert 20 * MB < needs.footprint(kind) < 120 * MB
    assert needs.output(kind) < MB


def allocating(gate, nbytes):
    Event(gate).wait()
    return int(np.ones(nbytes, dtype="u1")[-1])


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_results_released_meanwhile_do_not_hide_working_space(c, s, a):
    admission = admission_of(a)
    if not admission._meter.available:
        pytest.skip("this kernel does not tell")
    admission.quota.limit = 32 * 100 * MB
    old = c.submit(array, 1, 100 * MB, key="old")
    await wait(old)
    running = c.submit(allocating, "gate", 100 * MB, key="allocating-1")
    await async_poll_for(lambda: "allocating" in admission._footprints.prefixes(), 5)
    old.release()
    await async_poll_for(lambda: "old" not in a.data, 5)
    gc.collect()
    await Event("gate").set()
    await running
    assert admission.needs.footprint(OperandKind("allocating", 0, 0)) > 80 * MB


@planned_cluster(TWO_THREADS, plugin=with_quota)
async def test_releasing_a_view_frees_nothing(c, s, a):
    admission = admission_of(a)
    admission.quota.limit = 32 * 100 * MB
    whole = c.submit(array, 1, 100 * MB, key="whole")
    view = c.submit(operator.getitem, whole, slice(None), key="view")
    await wait(view)
    admission._refresh(exact=True)
    before = admission.quota.used
    view.release()
    await async_poll_for(lambda: "view" not in a.data, 5)
    admission._refresh()
    assert admission.quota.used > before - 20 * MB


def inner(n):
    return np.zeros((n + 2, n + 2))[1:-1, 1:-1]


@planned_cluster(ONE, plugin=with_quota)
async def test_copies_made_for_sending_count(c, s, a):
    host = admission_of(a).host
    whole = c.submit(array, 1, key="whole")
    apart = c.submit(inner, 1000, key="apart")
    await wait([whole, apart])
    sending = object()
    host._outgoing[sending] = ["whole", "apart", "gone"]
    assert host.transfers() == 8 * MB
    a.data.evict("whole")
    assert host.transfers() == 18 * MB
    del host._outgoing[sending]
    assert host.transfers() == 0


def frame(number):
    import pandas as pd

    return pd.DataFrame({"k": np.arange(10_000), "n": number})


@planned_cluster(ONE, plugin=with_quota)
async def test_output_partitions_of_a_shuffle_are_known_by_what_was_received(c, s, a, monkeypatch):
    dd = pytest.importorskip("dask.dataframe")
    admission, kinds = admission_of(a), []
    stock = admission.needs.observe_output
    monkeypatch.setattr(
        admission.needs, "observe_output", lambda kind, n: [kinds.append(kind), stock(kind, n)]
    )
    rows = dd.from_map(frame, range(4), meta=frame(0))
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        parts = c.persist(rows.shuffle("k"))
        await wait(parts)
        joined = c.persist(rows.merge(rows, on="k"))
        await wait(joined)
    columns = da.ones((8, 8000), chunks=(1, 8000)).rechunk((8, 4000), method="p2p")
    columns = c.persist(columns)
    await wait(columns)
    for name, nbytes in ("p2pshuffle", 640_000), ("hashjoinp2p", 1_280_000), ("rechunk", 512_000):
        received = [kind.input_bytes for kind in kinds if kind.prefix == name]
        assert nbytes < sum(received) < 2 * nbytes, (name, {kind.prefix for kind in kinds})
