import dask.array as da
import numpy as np
import pytest
from dask import delayed

from dask_marsched.host.simulation import expression, materialize
from dask_marsched.simulation.costs import CostModel, Costs, derive_costs, record_costs


def test_recorded_sizes_are_those_of_the_results():
    x = da.ones((100, 40), chunks=(50, 40)).map_blocks(np.copy).sum(axis=0)
    dsk, _ = materialize(*expression([x]))
    costs = record_costs(x)
    assert set(costs.nbytes) == set(dsk)
    parts = {key: size for key, size in costs.nbytes.items() if len(key) > 1 and key[1] in (0, 1)}
    assert max(costs.nbytes.values()) <= 50 * 40 * 8
    assert min(parts.values()) == 40 * 8
    assert set(costs.seconds) == set(dsk)


def test_costs_survive_a_file(tmp_path):
    x = da.ones(8, chunks=4) + 1
    path = tmp_path / "deep" / "costs"
    first = record_costs(x, path)
    assert path.exists()
    assert Costs.load(path) == first
    assert record_costs(x, path) == first  # durations would differ if it ran again


def test_a_file_of_another_graph_is_not_used(tmp_path):
    path = tmp_path / "costs"
    record_costs(da.ones(8, chunks=4) + 1, path)
    y = da.ones(8, chunks=2) + 1
    assert record_costs(y, path).covers(materialize(*expression([y]))[0])


def test_costs_are_found_again_under_new_tokens():
    def build():
        return (da.random.random(8, chunks=4) + 1).sum()  # a new token each time

    costs = record_costs(build()).without_durations()
    dsk, _ = materialize(*expression([build()]))
    assert not set(dsk) <= set(costs.nbytes)
    model = CostModel(dsk, costs)
    assert sorted(model(key)[1] for key in dsk) == sorted(costs.nbytes.values())


def test_unknown_sizes_are_an_error_that_names_one():
    dsk, _ = materialize(*expression([da.ones(8, chunks=4) + 1]))
    with pytest.raises(ValueError, match=r"sizes of \d+ of \d+ tasks are unknown.*record_costs"):
        CostModel(dsk, Costs({}))


def test_a_slice_touches_no_more_than_it_returns():
    x = da.ones((1000, 1000), chunks=1000).map_blocks(np.copy)
    dsk, _ = materialize(*expression([x[:10]]))
    nbytes = {key: 8_000_000 if "copy" in str(key) else 80_000 for key in dsk}
    model = CostModel(dsk, Costs(nbytes))
    cut = [model(key)[0] for key in dsk if str(key).startswith("('getitem")]
    assert all(seconds < 0.001 for seconds in cut)


def test_derived_sizes_are_the_recorded_ones():
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    y = (x[1:] + x[:-1]).mean(axis=0)
    derived, recorded = derive_costs(y), record_costs(y)
    assert derived.nbytes.keys() == recorded.nbytes.keys()
    large = [key for key, size in recorded.nbytes.items() if size > 10_000]
    assert large
    assert {key: derived.nbytes[key] for key in large} == {
        key: recorded.nbytes[key] for key in large
    }


def test_sizes_that_the_graph_does_not_tell_are_left_out_or_guessed():
    x = [delayed(bytes)(1000), delayed(bytes)(2000)]
    total = delayed(len)(x)
    assert not derive_costs(total, guess=False).nbytes
    dsk, _ = materialize(*expression([total]))
    assert derive_costs(total).nbytes.keys() == dsk.keys()
