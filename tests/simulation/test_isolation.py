"""Simulations in a process of their own do not depend on the one that asks."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import cloudpickle
import dask.array as da
import pytest

from dask_marsched import simulate
from dask_marsched.simulation.isolation import with_repeatable_tokens, with_tokens

#: Names by chance, and names by the contents of sets, whose order the hash seed decides.
_CHAIN = """
import dask
import dask.array as da
from dask_marsched import simulate

step = dask.delayed(lambda *given: 0)
chain = [step(number) for number in range(30)]
unseeded = da.random.random((300, 300), chunks=50)
collections = [(unseeded + unseeded.T).sum(), *map(step, chain, chain[1:])]
for policy in ("stock", "default"):
    report = simulate(collections, workers=3, policy=policy, isolated=True)
    print(report.makespan, report.bytes_moved, report.peak_memory, report.transfers)
    print(any(str(collections[-1].key) == key for key in report.timeline.keys))
"""


#: Layers that read several others: in a pickle these are sets. Two of their names are salted.
_LAYERS = """
import hashlib
import sys
import dask.array as da
from dask_marsched import simulate
from benchmarks import workloads

tokens = [hashlib.md5(f"{sys.argv[1]}{i}".encode()).hexdigest() for i in range(2)]
u, v = [da.ones((500, 500), chunks=100, name=f"field-{token}") for token in tokens]
own = (u[1:, 1:] - v[:-1, :-1]).mean() + (u + v.T[:, ::-1]).std()
vorticity = workloads.get("vorticity").build(workloads.Parameters(size=0.1))
trees = workloads.get("small-trees").build(workloads.Parameters(size=0.1))
print(simulate([own, *vorticity, *trees], workers=3, timeline=False).to_json())
"""


def _printed(program: str, seed: str, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.extended
def test_reports_are_the_same_whatever_the_names_and_the_hash_seed():
    seeds = [_printed(_CHAIN, seed) for seed in ("1", "2")]
    assert seeds[0] == seeds[1]
    assert seeds[0].split().count("True") == 2


@pytest.mark.slow
def test_the_seed_stands_for_what_stock_dask_leaves_to_the_hash_seed():
    left, right = (da.ones((800, 800), chunks=100) + i for i in range(2))
    moved = [
        simulate((left @ right).sum(), workers=4, policy="stock", seed=seed, noise=0.0).bytes_moved
        for seed in (0, 1, 2, 2)
    ]
    assert len({*moved}) > 1
    assert moved[2] == moved[3]


@pytest.mark.slow
def test_reports_are_the_same_in_a_process_with_the_hash_seed_of_those_that_simulate():
    seeds = [_printed(_LAYERS, *given) for given in (("0", "a"), ("1", "b"), ("2", "a"))]
    assert seeds[0] == seeds[1] == seeds[2]


def test_tokens_are_numbered_in_the_order_of_the_names():
    first, second = (f"a-{uuid.uuid4().hex}" for _ in range(2))
    pickled = cloudpickle.dumps([second, first])
    _, found = with_repeatable_tokens(pickled)
    _, given = with_repeatable_tokens(pickled, [first, second])
    assert list(found.values()) == [name[2:].encode() for name in (second, first)]
    assert list(given.values()) == [name[2:].encode() for name in (first, second)]
    assert list(found) == list(given)


def test_tokens_are_numbered_behind_the_same_word_and_come_back():
    def names():
        return ["a-" + uuid.uuid4().hex, "b-" + uuid.uuid4().hex, f"a-{uuid.uuid4()}", "no-token"]

    one, other = names(), names()
    first, given = with_repeatable_tokens(cloudpickle.dumps([*one, one[0]]))
    second, _ = with_repeatable_tokens(cloudpickle.dumps([*other, other[0]]))
    assert first == second
    renamed = cloudpickle.loads(first)
    assert len(set(renamed)) == 4
    assert renamed[3] == "no-token"
    assert renamed[0] == renamed[4]
    assert cloudpickle.loads(with_tokens(first, given)) == [*one, one[0]]
