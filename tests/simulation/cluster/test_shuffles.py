"""Peer-to-peer shuffles in the twin."""

import itertools

import dask
import dask.array as da
import pytest

from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.host.twin.shuffles import read_shuffles
from dask_marsched.simulation import simulate

SIDE, CHUNK = 400, 100
NBYTES = SIDE * SIDE * 8


def rows_to_columns(side=SIDE, chunk=CHUNK):
    x = da.random.default_rng(0).random((side, side), chunks=(chunk, side))
    with dask.config.set({"array.chunk-size": chunk * side * 8}):  # else small chunks are merged
        return x.rechunk((side, chunk), method="p2p")


def shuffles_of(collection):
    expr, keys = expression([collection])
    dsk, _ = materialize(expr, keys)
    return read_shuffles(expr, dsk), dsk


@pytest.fixture
def run():
    def run(collection, **options):
        chosen = {"isolated": False, "policy": "stock", "workers": 4, "noise": 0.0} | options
        return simulate(collection, **chosen)

    return run


@pytest.mark.parametrize("new", [(7, 31), (40, 40), (100, 9), (13, 100)])
def test_pieces_are_those_that_the_arrays_are_cut_into(new):
    x = da.ones((100, 100), chunks=(30, 25)).rechunk(new, method="p2p")
    found, _ = shuffles_of(x)
    assert not found.unknown
    received = {}
    for key, (shuffle, partition) in found.transfers.items():
        pieces = list(shuffle.pieces(partition))
        assert sum(share for _, share in pieces) == pytest.approx(1)
        for output, share in pieces:
            number = (shuffle.id, output)
            received[number] = received.get(number, 0) + share * found.nbytes[key]
    sizes = [prod * 8 for prod in (a * b for a, b in itertools.product(*x.chunks))]
    shuffled = sorted(round(nbytes) for nbytes in received.values())
    assert set(shuffled) <= set(sizes)
    assert len(found.outputs) <= len(shuffled)


def test_every_pair_of_workers_exchanges_its_share(run):
    report = run(rows_to_columns())
    transfers = report.to_frame("transfers")
    pieces = transfers[transfers.bytes == NBYTES // 16]
    ends = set(zip(pieces.source, pieces.destination, strict=True))
    assert ends == set(itertools.permutations(range(4), 2))
    assert pieces.bytes.sum() == NBYTES * 3 // 4  # each of 4 workers keeps a quarter
    assert report.tasks_recomputed == 0
    assert report.not_simulated == ()


@pytest.mark.parametrize("policy", ["stock", "default"])
def test_shuffles_run_under_validation(run, policy):
    report = run(rows_to_columns().sum(axis=0), policy=policy, validate=True)
    assert report.tasks_recomputed == 0
    assert not report.plugin.get("exceptions")


def test_nothing_is_unpacked_before_everything_has_arrived(run):
    report = run(rows_to_columns())
    tasks = report.to_frame()
    transfers = report.to_frame("transfers")
    unpacked = tasks[tasks.key.astype(str).str.contains("rechunk-p2p")]
    barrier = tasks[tasks.group == "shuffle-barrier"]
    sent = tasks[tasks.group.str.contains("rechunk-transfer")]
    assert len(barrier) == 1
    assert barrier.stop.item() >= sent.stop.max()
    pieces = transfers[transfers.bytes == NBYTES // 16]
    assert unpacked.start.min() >= barrier.stop.item() >= pieces.stop.max()


def test_shuffles_on_disk_take_the_disk_and_those_in_memory_memory(run):
    on_disk = run(rows_to_columns())
    with dask.config.set({"distributed.p2p.storage.disk": False}):
        in_memory = run(rows_to_columns())
    slow_disk = run(rows_to_columns(), disk_bandwidth="1MB/s")
    assert slow_disk.makespan > on_disk.makespan + NBYTES / 4 / 1e6
    assert slow_disk.bytes_spilled == on_disk.bytes_spilled == 0
    assert in_memory.peak_memory >= on_disk.peak_memory
    assert in_memory.peak_memory >= NBYTES
    at_the_end = [list(report.timeline.memory)[-1][1] for report in (in_memory, on_disk)]
    assert at_the_end[0] == at_the_end[1]  # the pieces are gone


def test_what_is_fused_into_a_transfer_is_found():
    x = da.ones((SIDE, SIDE), chunks=(SIDE, 10)).rechunk((10, SIDE), method="p2p").sum(axis=0)
    found, dsk = shuffles_of(x)
    assert not found.unknown
    assert all(key in dsk for key in found.transfers)
    assert sum(found.nbytes[key] for key in found.transfers) == NBYTES


@pytest.mark.parametrize("policy", ["stock", "default"])
@pytest.mark.parametrize("at", [0.02, 0.05, 0.08, 0.12])
def test_a_worker_that_dies_in_a_shuffle_starts_it_again(run, policy, at):
    report = run(
        rows_to_columns(1200, 100).sum(axis=0),
        policy=policy, faults=[(at, "kill", 1)], validate=True, task_overhead="5ms",
    )  # fmt: skip
    assert not report.plugin.get("exceptions")


def test_dataframes_are_spread_evenly_and_that_is_said(run):
    pandas = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = pandas.DataFrame({"a": range(1000), "b": range(1000)})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        shuffled = dd.from_pandas(frame, npartitions=8).shuffle("a")
        joined = shuffled.merge(shuffled.rename(columns={"b": "c"}), on="a")
    for collection in (shuffled, joined):
        report = run(collection)
        assert any("P2P shuffle of a dataframe" in what for what in report.not_simulated)
        assert report.transfers >= 12
