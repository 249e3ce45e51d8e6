import dask.array as da
import numpy as np
import pytest

from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.simulation.costs.costs import Costs, without_token
from tests.simulation.local_costs import record_costs


def tasks(*collections):
    return materialize(*expression(list(collections)))[0]


def test_recorded_sizes_are_those_of_the_results():
    x = da.ones((100, 40), chunks=(50, 40)).map_blocks(np.copy).sum(axis=0)
    dsk = tasks(x)
    costs = record_costs(x)
    assert set(costs.nbytes) == set(dsk)
    parts = {key: size for key, size in costs.nbytes.items() if len(key) > 1 and key[1] in (0, 1)}
    assert max(costs.nbytes.values()) <= 50 * 40 * 8
    assert min(parts.values()) == 40 * 8
    assert set(costs.seconds) == set(dsk)


def test_costs_survive_a_file(tmp_path):
    costs = record_costs(da.ones(8, chunks=4) + 1)
    costs.save(tmp_path / "costs")
    assert Costs.load(tmp_path / "costs") == costs


def build(chunks=4, size=8):
    return (da.random.random(size, chunks=chunks) + 1).sum()  # a new token each time


def test_costs_are_found_again_under_new_tokens():
    costs = record_costs(build())
    dsk = tasks(build())
    assert not set(dsk) <= set(costs.nbytes)
    renamed = costs.renamed(dsk)
    assert sorted(renamed.nbytes[key] for key in dsk) == sorted(costs.nbytes.values())
    assert all(key in renamed.seconds and key in renamed.input_nbytes for key in dsk)


def test_of_twins_the_one_of_the_right_size_is_taken():
    a, b = "0" * 32, "1" * 32
    costs = Costs({("x-" + a, 0): 10, ("x-" + b, 0): 20}, {("x-" + a, 0): 1.0, ("x-" + b, 0): 2.0})
    new = ("x-" + "2" * 32, 0)
    assert costs.renamed([new], {new: 20}).seconds[new] == 2.0


def test_tasks_that_were_recorded_as_one_are_found_again():
    a, b = "0" * 32, "1" * 32
    head, member = ("sum-" + a, 0), ("x-" + a, 0)
    costs = Costs({head: 8}, {head: 1.0}, joined={head: (member, head)})
    new = [("x-" + b, 0), ("sum-" + b, 0)]
    renamed = costs.renamed(new, {new[0]: 80})
    assert renamed.joined == {head: tuple(new)}
    assert renamed.seconds[new[1]] == 1.0
    assert new[0] not in renamed.nbytes
    assert costs.renamed([member, head]) is costs


def test_a_size_that_contradicts_shows_another_problem():
    costs = record_costs(build(chunks=4))
    other = tasks(build(chunks=2, size=4))
    sources = {key: 16 for key in other if "random" in str(key)}
    assert costs.renamed(other, sources) is costs


def test_tokens_are_left_out_of_every_part_of_a_name():
    token = "0123456789abcdef" * 2
    assert without_token((f"a-{token}", 1)) == ("a-", 1)
    assert without_token("f-01234567-89ab-cdef-0123-456789abcdef") == "f-"
    assert without_token(7) == 7


def test_what_costs_may_be_given_as(tmp_path):
    costs = Costs({"a": 1})
    costs.save(tmp_path / "c")
    assert Costs.of(None) == Costs({})
    assert Costs.of(costs) is costs
    assert Costs.of(tmp_path / "c") == Costs.of(str(tmp_path / "c")) == costs
    with pytest.raises(TypeError, match="costs must be None, Costs, a Recording or the path"):
        Costs.of({"a": 1})
