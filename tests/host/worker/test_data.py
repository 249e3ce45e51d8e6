"""The store against distributed's own `SpillBuffer`: one contract, run on both."""

import copy
import gc
import random
import sys
import threading
import traceback
import warnings
from types import SimpleNamespace

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import wait
from distributed.spill import MaxSpillExceeded, PickleError, SpillBuffer
from distributed.utils_test import async_poll_for, captured_logger, gen_cluster, inc

from dask_marsched.host.worker.data import WorkerStore, install, misfits, order_of_use, uninstall
from dask_marsched.host.worker.publishing import Published
from dask_marsched.store.segment import Handle, SegmentAddress
from tests.store.arrays import kinds, same

N = 200_000  # bytes of the arrays below


def array(i=0):
    return np.full(N // 8, float(i))


@pytest.fixture(params=["stock", "store", "compressed"])
def make(request, tmp_path):
    """``make(target, max_spill)`` makes a mapping."""

    def make_it(target=10**9, max_spill=False):
        directory = str(tmp_path / "spill")
        if request.param == "stock":
            return SpillBuffer(directory, target, max_spill)
        compression = "zlib" if request.param == "compressed" else None
        return WorkerStore(directory, target, max_spill, compression=compression)

    return make_it


def test_the_store_is_a_mapping(make):
    data = make()
    data["a"], data[("b", 1)] = 1, array(2)
    assert set(data) == {"a", ("b", 1)} == set(data.keys())
    assert len(data) == 2
    assert data["a"] == 1
    assert "c" not in data
    with pytest.raises(KeyError):
        data["c"]
    del data["a"]
    with pytest.raises(KeyError):
        del data["a"]
    assert list(data) == [("b", 1)]
    with pytest.raises(NotImplementedError, match="del"):
        data.pop(("b", 1))


def test_above_the_target_the_oldest_is_spilled(make):
    data = make(target=2.5 * N)
    for i in range(4):
        data[i] = array(i)
    assert set(data.disk) == {0, 1} == set(data.slow)
    assert set(data.memory) == {2, 3} == set(data.fast)
    assert data.spilled_total.memory == 2 * dask.sizeof.sizeof(array())
    assert data.spilled_total.disk > 0
    assert (data[0] == 0).all()
    assert set(data.disk) == {1, 2}


def test_spilling_by_hand(make):
    data = make()
    data["a"], data["b"] = array(1), array(2)
    assert data.evict() == dask.sizeof.sizeof(array())
    assert (set(data.fast), set(data.slow)) == ({"b"}, {"a"})
    data.evict()
    assert not data.fast
    assert len(data) == 2
    del data["a"]
    assert (data["b"] == 2).all()
    assert data.spilled_total == (0, 0)


def test_a_value_in_use_is_not_read_twice(make):
    data = make()
    value = data["a"] = array()
    data.evict()
    assert data["a"] is value


@pytest.mark.extended
@pytest.mark.parametrize("kind", kinds())
def test_all_kinds_come_back(make, kind):
    data = make()
    data["a"] = kinds()[kind]
    assert data.evict() >= 0
    assert list(data.slow) == ["a"]
    assert same(data["a"], kinds()[kind])


def test_values_larger_than_the_target_go_to_disk_at_once(make):
    data = make(target=N // 2)
    data["a"] = array()
    data["b"] = 1
    assert (set(data.fast), set(data.slow)) == ({"b"}, {"a"})
    assert (data["a"] == 0).all()
    assert list(data.slow) == ["a"]


def test_a_disk_limit_keeps_values_in_memory(make):
    data = make(max_spill=int(1.5 * N))
    rng = np.random.default_rng(0)
    for i in range(2):
        data[i] = rng.random(N // 8)
    assert data.evict() > 0
    assert data.evict() == -1
    assert (set(data.fast), set(data.slow)) == ({1}, {0})
    del data[0]
    assert data.evict() > 0


def test_a_failed_write_leaves_no_memory_views_behind(tmp_path):
    # Python 3.12 crashes when it collects them with the exception.
    data = WorkerStore(str(tmp_path), 10**9, N // 2)
    data["a"] = array()
    with pytest.raises(MaxSpillExceeded) as caught:
        data.slow["a"] = data.fast["a"]
    names = {f.f_code.co_name: f for f, _ in traceback.walk_tb(caught.value.__traceback__)}
    assert names["_write"].f_locals == {}


def test_a_disk_limit_counts_bytes_written(make):
    data = make(target=1, max_spill=2000)
    for i in range(8):
        data[i] = f"{i}" * 100
    assert len(data.slow) == 8


class Unwilling:
    """Cannot be pickled, and is as large as it says."""

    def __init__(self, nbytes):
        self.nbytes = nbytes

    def __reduce__(self):
        raise ZeroDivisionError("not me")

    def __sizeof__(self):
        return self.nbytes


def test_unpicklable_values_stay_in_memory(make):
    data = make()
    data["a"] = Unwilling(100)
    assert data.evict() == -1
    assert list(data.fast) == ["a"]
    assert not data.slow
    del data["a"]
    assert not data.logged_pickle_errors


def test_unpicklable_values_are_to_be_evicted_again_later(store, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("dask_marsched.host.worker.data.monotonic", lambda: now[0])

    def evictable():
        return [key for some in store.evictable() for key in some.keys]

    store["a"] = Unwilling(100)
    assert evictable() == ["a"]
    for seconds in (5, 10, 20):
        assert store.evict("a") == -1
        assert evictable() == []
        now[0] += seconds - 1
        assert evictable() == []
        now[0] += 1
        assert evictable() == ["a"]
    assert store.evict("a") == -1
    store["a"] = Unwilling(100)  # of another task with the same key
    assert evictable() == ["a"]
    monkeypatch.setattr(Unwilling, "__reduce__", lambda self: (int, ()))
    assert store.evict("a") > 0
    assert list(store.slow) == ["a"]


def test_unpicklable_values_above_the_target_raise(make):
    data = make(target=1000)
    with pytest.raises(TypeError, match="pickle"):
        data["a"] = Unwilling(2000)
    assert "a" not in data


def test_a_full_disk_keeps_values_in_memory(make, monkeypatch):
    data = make()
    data["a"] = array()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("dask_marsched.store.spill_file.os.pwrite", full)
        patched.setattr("zict.file.open", full, raising=False)
        assert data.evict() == -1
    assert list(data.fast) == ["a"]
    assert data.evict() > 0


def test_the_metrics_have_the_names_of_stock(tmp_path):
    def used(data):
        data["a"] = array()
        data.evict()
        data["a"]
        data["a"]
        return data.cumulative_metrics

    stock = used(SpillBuffer(str(tmp_path / "a"), 10**9))
    ours = used(WorkerStore(str(tmp_path / "b"), 10**9))
    # nothing is compressed
    assert set(stock) - set(ours) <= {("compress", "seconds"), ("decompress", "seconds")}
    assert set(ours) <= set(stock)
    for name in ("disk-read", "disk-write", "memory-read"):
        assert ours[name, "count"] == stock[name, "count"] == 1
    assert ours["disk-write", "bytes"] == ours["disk-read", "bytes"] == N


# --- what stock does not do ---------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    return WorkerStore(str(tmp_path), 10**9)


def test_unmodified_arrays_are_not_written_again(store):
    store["a"] = array(1)
    for _ in range(3):
        store.evict()
        assert store["a"].sum() == N // 8
    counters = store.slow.counters
    assert (counters["written"], counters["unchanged"], counters["read"]) == (1, 2, 3)


@pytest.mark.parametrize("kind", [dict, list, pd.DataFrame])
def test_unmodified_collections_of_arrays_are_not_written_again(store, kind):
    names = {"sums": 0, "counts": 1}
    arrays = {name: array(i) for name, i in names.items()}
    store["a"] = arrays if kind is dict else kind([*arrays.values()])
    expected = kind(store["a"])
    store.evict()
    for _ in range(2):
        assert same(store["a"], expected)
        store.evict()
    counters = store.slow.counters
    assert (counters["written"], counters["unchanged"]) == (1, 2)
    value = store["a"]
    if kind is pd.DataFrame:
        value.iloc[-1, 1] = 7
    else:
        value["counts" if kind is dict else 1][-1] = 7
    expected = copy.deepcopy(value)
    del value
    store.evict()
    assert same(store["a"], expected)
    assert counters["written"] == 2


@pytest.mark.parametrize("change", ["other key", "exchanged", "added"])
def test_collections_of_unmodified_arrays_are_written_if_they_changed(store, change):
    store["a"] = {"sums": array(0), "counts": array(1)}
    store.evict()
    value = store["a"]
    if change == "other key":
        value["means"] = value.pop("counts")
    elif change == "exchanged":
        value["sums"], value["counts"] = value["counts"], value["sums"]
    else:
        value["more"] = array(2)
    expected = dict(value)
    store.evict()
    assert same(store["a"], expected)
    assert store.slow.counters["written"] == 2


def test_a_view_of_a_spilled_array_is_not_written(store):
    store["a"] = whole = array(1)
    store["b"] = whole[:]
    del whole
    for key in ("a", "b"):
        store.evict(key)
    counters = store.slow.counters
    assert (counters["written"], counters["unchanged"]) == (1, 1)
    assert store.slow._file.live >= N
    gc.collect()
    first = store["a"]
    assert store["b"] is first  # they share memory again
    assert (first == 1).all()
    del store["a"], first
    gc.collect()
    assert (store["b"] == 1).all()
    del store["b"]
    gc.collect()
    assert store.slow._file.live == 0
    assert not store.slow._places


def test_a_view_of_a_mapped_array_is_not_written(store):
    store["a"] = array(1)
    store.evict()
    gc.collect()
    store["b"] = store["a"][:]
    store.evict("b")
    assert store.slow.counters["written"] == 1


def test_arrays_in_use_are_not_written_again(store):
    kept = store["a"] = array(1)
    store.evict()
    assert store["a"] is kept
    store.evict()
    assert store.slow.counters["written"] == 1


def test_a_shared_base_counts_once(store):
    whole = array(1)
    store["whole"], store["view"], store["edge"] = whole, whole[:], whole[:2]
    del whole
    assert store.held == N
    assert [(s.keys, s.staying) for s in store.evictable()] == [(("whole", "view"), ("edge",))]
    store.evict("whole")
    store.evict("view")
    assert store.held == N  # the edge keeps it
    store.copy_views(["edge", "gone"])
    assert store.held == 16
    assert store.in_memory("edge").base is None
    assert (store["edge"] == 1).all()
    assert store["whole"] is store["view"]
    assert store.held == N + 16
    store.clear()
    assert store.held == 0


@pytest.mark.parametrize("order", "CF")
def test_a_view_that_gets_its_own_memory_looks_the_same(store, order):
    whole = np.arange(N // 8, dtype=">i4").reshape(5, -1, order=order)
    edge = whole[:3] if order == "C" else whole[:, :3]
    edge.flags.writeable = False
    store["edge"] = edge
    store.copy_views(["edge"])
    assert store["edge"] is not edge
    assert same(store["edge"], edge)
    assert store["edge"].strides == edge.strides
    assert not store["edge"].flags.writeable


def test_strided_arrays_come_back(make):
    buf = make()
    buf["inner"] = inner = np.random.default_rng(0).random((602, 1002))[1:-1, 1:-1]
    expected = inner.copy()
    del inner
    assert buf.evict() == expected.nbytes
    assert same(buf["inner"], expected)


@pytest.mark.parametrize("change", ["content", "shape", "half"])
def test_another_view_is_written(store, change):
    store["a"] = whole = array(1)
    store.evict()
    if change == "content":
        whole[-1] = 7
        view = whole[:]
    else:
        view = whole.reshape(-1, 5) if change == "shape" else whole[: N // 16]
    expected = view.copy()
    store["b"] = view
    store.evict("b")
    assert store.slow.counters["written"] == 2
    del whole, view
    gc.collect()
    assert same(store["b"], expected)
    assert (store["a"] == 1).all()


@pytest.mark.extended
@pytest.mark.parametrize("change", ["content", "shape", "flag", "another"])
def test_modified_arrays_are_written_again(store, change):
    store["a"] = array(1)
    store.evict()
    gc.collect()
    value = store["a"]
    if change == "content":
        value[-1] = 7
    elif change == "shape":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value.shape = (-1, 5)
    elif change == "flag":
        value.flags.writeable = False
    else:
        value = store["a"] = value + 1
    expected = value.copy()
    expected.flags.writeable = value.flags.writeable
    store.evict()
    del value
    gc.collect()
    assert same(store["a"], expected)
    assert store.slow.counters["written"] == 2
    assert store.slow.counters["unchanged"] == 0


def test_the_key_needed_last_is_spilled_first(store):
    uses = {"a": 3, "b": 9, "c": 1}
    store.fast.next_use = uses.get
    for key in "abcd":
        store[key] = array()
    order = []
    for _ in range(4):
        store.evict()
        order += [key for key in store.slow if key not in order]
    assert order == ["d", "b", "a", "c"]


def a_peers(*, modified=False, is_peers=True):
    """Return where a peer's array is mapped from."""
    mapping = SimpleNamespace(modified=lambda: modified)
    return Published(None, mapping, is_peers=is_peers)


@pytest.mark.parametrize("where", [a_peers(modified=True), a_peers(is_peers=False)])
def test_memory_of_peers_that_is_ours_by_now_has_a_weight(store, where):
    value = array()
    store.foreign.set(value, where)
    store["x"] = value
    assert store.held == dask.sizeof.sizeof(value)
    assert [some.keys for some in store.evictable()] == [("x",)]


def test_memory_of_a_peer_that_is_gone_has_a_weight(store):
    mapping = SimpleNamespace(modified=lambda: False)
    for key, segment in (("gone", b"1"), ("there", b"2")):
        value = array()
        handle = Handle(SegmentAddress(1, 2, segment), 0, 4096, b"", (), plain=True)
        store.foreign.set(value, Published(handle, mapping))
        store[key] = store[key, "again"] = value
    assert store.held == 0
    store.weigh_orphans({(b"1", 4096), (b"2", 0)})
    assert store.held == dask.sizeof.sizeof(store["gone"])
    (found,) = store.evictable()
    assert set(found.keys) == {"gone", ("gone", "again")}


def test_a_copy_of_a_peers_array_has_a_weight(store):
    value = array()
    store.foreign.set(value, a_peers())
    store["x"] = value
    assert store.held == 0
    store.fast.exchange("x", value, value.copy())
    assert store.held == dask.sizeof.sizeof(value)
    del store["x"]
    assert store.held == 0


def test_what_is_lent_is_of_the_same_computation(store):
    store["x"], store["y"] = array(), array()
    store.evict("x")
    store.evict("y")
    entries = {"x": store.slow.entries["x"]}
    first = store.peek("x")
    del store["x"]
    store["x"] = array() + 1
    store.evict("x")
    store.slow.lend({"x": first}, entries)
    assert (store.peek("x") == array() + 1).all()


def test_weightless_keys_are_spilled_last(store):
    foreign = array()
    store.foreign.set(foreign, a_peers())
    store["foreign"] = foreign
    store["own"] = array()
    assert store.held == dask.sizeof.sizeof(array())
    assert [some.keys for some in store.evictable()] == [("own",)]
    store.evict()
    assert list(store.slow) == ["own"]
    assert store.evict() == 0
    assert list(store.slow) == ["own", "foreign"]


def test_a_key_of_weight_is_found_behind_many_weightless_ones(store):
    foreign = array()
    store.foreign.set(foreign, a_peers())
    for i in range(300):
        store["foreign", i] = foreign
    store["own"] = array()
    store.evict()
    assert list(store.slow) == ["own"]


def test_one_key_can_be_spilled(store):
    store["a"], store["b"] = array(), array()
    assert store.evict("b") == dask.sizeof.sizeof(array())
    assert store.is_spilled("b")
    assert not store.is_spilled("a")
    assert store.evict("b") == 0
    assert store.evict("c") == 0


@pytest.mark.parametrize("error", [MaxSpillExceeded, PickleError])
def test_a_key_freed_while_it_is_written_in_vain(store, monkeypatch, error):
    store["a"] = array()

    def write(key, value):
        del store[key]  # as the event loop does meanwhile
        raise error(key)

    monkeypatch.setattr(store.slow, "write", write)
    assert store.evict("a") == 0
    store["a"] = array()
    assert store.evict() == 0
    assert not list(store)


def test_nothing_is_evicted_while_all_is_being_written(store, monkeypatch):
    begun, go = threading.Event(), threading.Event()
    write = store.slow.write

    def slowly(key, value):
        begun.set()
        go.wait()
        return write(key, value)

    store["a"] = array(1)
    with monkeypatch.context() as patched:
        patched.setattr(store.slow, "write", slowly)
        thread = threading.Thread(target=store.evict, args=("a",))
        thread.start()
        begun.wait()
    try:
        assert store.evict() == -1  # what distributed's loop ends at
        assert store.evict("a") == 0
        store["b"] = array(2)
        assert store.evict() > 0
    finally:
        go.set()
        thread.join()
    assert set(store.slow) == {"a", "b"}
    assert store.evict() == -1


@pytest.mark.parametrize("view", ["items", "values"])
def test_all_are_seen_while_they_move(store, view):
    for i in range(6):
        store[i] = array(i)
    store.evict(4)
    store.evict(5)
    seen = []
    for found in getattr(store, view)():
        seen.append(found[1][0] if view == "items" else found[0])
        store.evict()
        if len(seen) == 1:
            assert store[5][0] == 5  # comes back
            del store[2]
    assert sorted(seen) == [0, 1, 3, 4, 5]


def test_looking_at_all_of_them_moves_none(store):
    for i in range(4):
        store[i] = array(i)
    store.evict(0)
    assert [key for key, value in store.items() if value[0] == key] == [1, 2, 3, 0]
    assert [value[0] for value in store.values()] == [1, 2, 3, 0]
    assert (set(store.fast), set(store.slow)) == ({1, 2, 3}, {0})
    assert list(store.fast.order) == [1, 2, 3]
    with pytest.raises(KeyError):
        store.peek("gone")


def test_keys_without_promotion_stay_on_disk(store):
    store["a"] = array(3)
    store.evict()
    gc.collect()
    store.may_promote = lambda key, nbytes: nbytes < N
    value = store["a"]
    assert (value == 3).all()
    assert store.is_spilled("a")
    assert store.held == 0
    assert store["a"] is value


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_threads_store_read_evict_and_delete_at_once(tmp_path, compression):
    # stock's loses values then: it is made for one thread
    data = WorkerStore(str(tmp_path), 5 * N, compression=compression)
    failed = []

    def work(seed):
        rng = random.Random(seed)
        try:
            for i in range(60):
                key = (seed, rng.randrange(4))
                data[key] = array(seed * 100 + i)
                if rng.random() < 0.5:
                    data.evict()
                if not (data[key] == seed * 100 + i).all():
                    failed.append(key)
                if rng.random() < 0.3:
                    del data[key]
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert set(data.fast).isdisjoint(data.slow)
    assert data.spilled_total.memory == sum(data.slow.entries[k].weight.memory for k in data.slow)
    assert failed == []


def test_nothing_has_a_name_on_disk(store, tmp_path):
    store["a"] = array()
    store.evict()
    assert list(tmp_path.iterdir()) == []


def test_exchanging_a_missing_value_does_nothing(store):
    old = store["a"] = array(1)
    new = array(1)
    store.fast.exchange("a", old, new)
    assert store["a"] is new
    store["a"] = 5
    store.fast.exchange("a", new, old)
    assert store["a"] == 5
    store.fast.exchange("b", None, new)
    assert "b" not in store


# --- in a worker --------------------------------------------------------------------------

MEMORY = {
    "distributed.worker.memory.target": 0.6,
    "distributed.worker.memory.spill": False,
    # The workers share their process with all the tests before: its size must not pause them.
    "distributed.worker.memory.pause": False,
    # The tests run it themselves.
    "distributed.scheduler.active-memory-manager.start": False,
}


def stored(workers):
    return [install(worker) for worker in workers]


@gen_cluster(client=True, worker_kwargs={"memory_limit": "400 MB"}, config=MEMORY)
async def test_a_worker_moves_its_data_and_back(c, s, a, b):
    x = c.submit(array, 1, key="x", workers=[a.address])
    y = c.submit(array, 2, key="y", workers=[a.address])
    await wait([x, y])
    a.data.evict()
    store = install(a)
    assert a.data is store is a.state.data is a.memory_manager.data
    assert set(store) == {"x", "y"}
    store.evict()
    assert (await x).sum() + (await y).sum() == 3 * N / 8
    store.evict()
    uninstall(a, store)
    assert type(a.data) is SpillBuffer
    assert a.data is a.state.data
    assert a.data.n == store.n
    assert (await x).sum() + (await y).sum() == 3 * N / 8
    uninstall(a, store)  # no longer there
    assert type(a.data) is SpillBuffer


def cannot_be_loaded():
    raise OSError("not today")


class Unreadable:
    def __reduce__(self):
        return cannot_be_loaded, ()


def readable(data):
    """The numbers of the arrays in a worker's data, and the keys on disk."""
    on_disk = set(data.slow)
    return [data[key].max() for key in ("x", ("y", 0), "z")], on_disk


@gen_cluster(nthreads=[("", 1)], worker_kwargs={"memory_limit": "400 MB"}, config=MEMORY)
async def test_an_unreadable_result_costs_no_others(s, a):
    a.data.update({"x": array(1), ("y", 0): array(2), "bad": Unreadable(), "z": array(3)})
    stock = a.data
    for key in ("x", "bad"):
        stock.fast.evict(key)
    with pytest.raises(RuntimeError, match=r"the spilled 'bad' cannot be moved.*not today"):
        install(a)
    assert a.data is stock is a.state.data
    assert readable(stock) == ([1, 2, 3], {"x", "bad"})

    del stock["bad"]
    store = install(a)
    store["bad"] = Unreadable()
    for key in (("y", 0), "bad"):
        store.evict(key)
    with captured_logger("dask_marsched") as log:
        uninstall(a, store)
    assert "'bad' cannot be moved" in log.getvalue()
    assert install(a) is a.data is store is a.state.data
    assert readable(store) == ([1, 2, 3], {("y", 0), "bad"})

    del store["bad"]
    store.evict("z")
    uninstall(a, store)
    assert type(a.data) is SpillBuffer
    assert readable(a.data) == ([1, 2, 3], {"z"})
    for key in list(a.data):  # they belong to no tasks
        del a.data[key]


@gen_cluster(client=True, worker_kwargs={"memory_limit": "400 MB"}, config=MEMORY)
async def test_the_heartbeat_reports_spilled_bytes(c, s, a, b):
    stored([a, b])
    x = c.submit(array, 1, key="x", workers=[a.address])
    await wait(x)
    a.data.evict()
    await a.heartbeat()
    assert s.workers[a.address].metrics["spilled_bytes"] == {
        "memory": dask.sizeof.sizeof(array()),
        "disk": N,
    }
    assert s.workers[a.address].memory.spilled == N


@gen_cluster(
    client=True, nthreads=[("", 1)], worker_kwargs={"memory_limit": "400 MB"}, config=MEMORY
)
async def test_prometheus_reports_spilled_bytes(c, s, a):
    pytest.importorskip("prometheus_client")
    from distributed.http.worker.prometheus.core import WorkerMetricCollector

    install(a)
    x = c.submit(array, 1, key="x", workers=[a.address])
    await wait(x)
    a.data.evict()
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in WorkerMetricCollector(a).collect()
        for sample in metric.samples
    }
    assert values["dask_worker_memory_bytes", "spilled"] == N
    assert values["dask_worker_tasks", "disk"] == 1
    assert values["dask_worker_spill_bytes_total", "disk-write"] == N


@gen_cluster(client=True, worker_kwargs={"memory_limit": "400 MB"}, config=MEMORY)
async def test_scatter_replicate_rebalance_and_the_memory_manager(c, s, a, b):
    stored([a, b])
    (x,) = await c.scatter([array(44)], workers=[a.address])
    a.data.evict()
    await c.replicate([x], n=2)
    assert (b.data[x.key] == 44).all()
    # the memory manager drops one of them again, as nobody needs both
    s.extensions["amm"].run_once()
    await async_poll_for(lambda: (x.key in a.data) != (x.key in b.data), 10)
    assert ((await x) == 44).all()
    futures = await c.scatter([array(i) for i in range(10)], workers=[a.address])
    for worker in (a, b):
        worker.monitor.update()
        await worker.heartbeat()
    await c.rebalance(futures)
    assert len(a.data) + len(b.data) == 11
    assert [v[0] for v in await c.gather(futures)] == list(range(10))


@gen_cluster(
    client=True,
    nthreads=[("", 1)],
    worker_kwargs={"memory_limit": "400 MB"},
    config={
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": 0.5,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.monitor-interval": "10ms",
    },
)
async def test_the_memory_monitor_spills(c, s, a):
    install(a)
    futures = [c.submit(array, i, key=f"x-{i}", pure=False) for i in range(4)]
    await wait(futures)
    a.monitor.get_process_memory = lambda: 300_000_000 if a.data.fast else 0
    await async_poll_for(lambda: len(a.data.slow) == 4, 10)
    assert [v[0] for v in await c.gather(futures)] == [0, 1, 2, 3]


GATE = threading.Event()


def read(first):
    assert GATE.wait(20)
    return first


@gen_cluster(client=True, nthreads=[("", 1)])
async def test_the_order_of_use_is_that_of_the_waiting_tasks(c, s, a):
    x, y, z = (c.submit(inc, i, key=k) for i, k in enumerate("xyz"))
    await wait([x, y, z])

    GATE.clear()
    running = c.submit(read, y, key="running", priority=2)
    await async_poll_for(lambda: "running" in a.state.tasks and a.state.executing, 10)
    later = c.submit(inc, x, key="later", priority=1)
    await async_poll_for(lambda: "later" in a.state.tasks, 10)
    next_use = order_of_use(a)
    assert next_use("y") < next_use("x")
    assert next_use("z") is None
    assert next_use("unknown") is None
    GATE.set()
    await wait([running, later])
    assert next_use("y") is None


@gen_cluster(nthreads=[("", 1)])
async def test_a_worker_with_other_data_is_left_alone(s, a):
    data = a.data
    assert misfits(a) == []
    if type(data) is SpillBuffer:
        a.memory_manager.data = a.state.data = data = {}
    with pytest.raises(RuntimeError, match="keeps its data in a dict"):
        install(a)
    assert a.data is data


@pytest.mark.parametrize("name", ["_capture_metrics", "_handle_errors", "memory", "disk"])
@gen_cluster(nthreads=[("", 1)], worker_kwargs={"memory_limit": "400 MB"})
async def test_another_spill_buffer_is_found(s, a, name, monkeypatch):
    data = a.data
    for cls in SpillBuffer.__mro__:
        if name in vars(cls):
            monkeypatch.delattr(cls, name)
    assert misfits(a) == [f"SpillBuffer has no attribute {name}"]
    with pytest.raises(RuntimeError, match=f"has no attribute {name}"):
        install(a)
    assert a.data is data
    monkeypatch.undo()
