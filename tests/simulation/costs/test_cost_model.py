import dask.array as da
import numpy as np
import pytest
from dask import delayed
from dask.utils import key_split

from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.simulation.costs.cost_model import CostModel
from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.derived import OVERHEAD
from tests.simulation.local_costs import record_costs


def model_of(collection, costs):
    expr, keys = expression([collection])
    dsk, _ = materialize(expr, keys)
    return dsk, CostModel(expr, dsk, costs)


def noise(chunks, size):
    x = da.random.random(size, chunks=chunks)
    return (x + x[::-1]).map_blocks(np.cumsum).sum()


def text(count, length):
    parts = [delayed(str.ljust, pure=False)("a", length) for _ in range(count)]
    return delayed(len)(delayed("".join)([delayed(str.upper)(part) for part in parts]))


def test_of_a_recorded_graph_everything_is_as_recorded():
    x = noise(100, 400)
    costs = record_costs(x)
    dsk, model = model_of(x, costs)
    assert {key: model(key) for key in dsk} == {
        key: (costs.seconds[key], costs.nbytes[key]) for key in dsk
    }
    assert model.sizes == model.durations == {"recorded": len(dsk)}


def test_of_another_instance_too():
    costs = record_costs(noise(100, 400))
    dsk, model = model_of(noise(100, 400), costs)
    assert sorted(model(key) for key in dsk) == sorted(
        (costs.seconds[key], costs.nbytes[key]) for key in costs.nbytes
    )
    assert model.sizes == model.durations == {"recorded": len(dsk)}


def test_the_duration_of_joined_tasks_is_shared_among_them():
    x = da.random.random(10_000_000, chunks=5_000_000)
    y = (x + 1).sum()
    dsk, derived = model_of(y, Costs({}))
    head = max(dsk, key=lambda key: len(dsk[key].dependencies))
    costs = Costs({head: 8}, {head: 3.0}, joined={head: tuple(dsk)})
    same, model = model_of(y, costs)
    assert same.keys() == dsk.keys()
    together = sum(derived(key)[0] for key in dsk)
    for key in dsk:
        assert model(key)[0] == pytest.approx(3.0 * derived(key)[0] / together, rel=0.01)
    # Of another size of the problem nothing can be learnt from them.
    other = da.random.random(40, chunks=5)
    dsk, model = model_of((other + 1).sum(), costs)
    assert model.durations == {"derived": len(dsk)}


def test_without_costs_an_array_graph_tells_all_sizes():
    x = noise(100, 400)
    dsk, model = model_of(x, Costs({}))
    costs = record_costs(x)
    assert {key: model(key)[1] for key in dsk} == costs.nbytes
    assert model.sizes == {"known": len(dsk)}
    assert model.durations == {"derived": len(dsk)}


def test_durations_are_carried_over_to_another_size_of_the_problem():
    small = record_costs(noise(1000, 4000))
    slow = Costs(small.nbytes, dict.fromkeys(small.nbytes, 2.0), small.input_nbytes)
    dsk, model = model_of(noise(5_000_000, 10_000_000), slow)
    assert model.sizes == {"known": len(dsk)}
    sources = [key for key in dsk if key_split(key) == "random_sample"]
    assert len(sources) == 2
    assert all(100.0 < model(key)[0] < 10_000.0 for key in sources)  # 5,000 times the bytes
    assert model.durations == {"learnt": len(dsk)}


def test_sizes_are_learnt_in_proportion_to_the_inputs():
    recorded = record_costs(text(4, 1000))
    small = Costs(recorded.nbytes, {}, recorded.input_nbytes)
    larger = text(8, 1000)
    dsk, model = model_of(larger, small)
    true = record_costs(larger).nbytes
    uppers = [key for key in dsk if key_split(key) == "upper"]
    assert len(uppers) == 8
    assert {key: model(key)[1] for key in uppers} == {key: true[key] for key in uppers}
    assert model.sizes["guessed"] == 0
    (joined,) = [key for key in dsk if key_split(key) == "join"]
    assert model(joined)[1] == pytest.approx(true[joined], rel=0.1)


def test_what_nothing_tells_is_guessed_and_counted():
    dsk, model = model_of(text(3, 1000), Costs({}))
    assert model.sizes == {"guessed": len(dsk)}
    assert all(seconds > 0 for seconds, _ in map(model, dsk))


def test_guesses_follow_the_inputs():
    x = delayed(bytes)(1000)
    y = delayed(bytes.upper)(x)
    dsk, model = model_of(y, Costs({x.key: 1033}))
    assert model(y.key)[1] == 1033
    assert model.sizes == {"recorded": 1, "guessed": 1}
    assert len(dsk) == 2


def test_tasks_made_into_one_have_their_overhead_once():
    x = da.ones(30, chunks=10).map_blocks(np.negative)
    dsk, model = model_of(x, Costs({}))
    first, *others = (key for key in dsk if key in set(x.__dask_keys__()))
    members = [first, *others]
    apart = sum(model(key)[0] for key in members)
    model.bundle({"bundle": members})
    assert model("bundle")[0] == pytest.approx(apart - 2 * OVERHEAD)
    model.bundle({first: ["bundle"]})
    assert 0 < model(first)[0] < OVERHEAD
    model.join({first: [first, *others]})
    assert model(first)[0] == pytest.approx(apart * 2 / 3 - OVERHEAD, rel=0.01)


def test_recorded_durations_have_no_overhead_to_save():
    x = da.ones(20, chunks=10).map_blocks(np.negative)
    keys = x.__dask_keys__()
    _, model = model_of(x, Costs(dict.fromkeys(keys, 80), dict.fromkeys(keys, 0.01)))
    model.join({keys[0]: keys})
    assert model(keys[0])[0] == pytest.approx(0.02)
