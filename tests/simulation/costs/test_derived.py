import dask.array as da
import numpy as np
import pytest
from dask import delayed

from benchmarks.rates import OPERATIONS
from dask_marsched.host.twin.operation_kinds import KINDS, TaskOperation, TaskOperations
from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.simulation.costs.derived import (
    CONCATENATION,
    FUSED,
    OVERHEAD,
    RATES,
    derived_seconds,
    seconds_of,
)
from tests.simulation.local_costs import derive_costs, record_costs

MIB = 2**20


def durations(collection):
    expr, keys = expression([collection])
    dsk, _ = materialize(expr, keys)
    operations = TaskOperations(expr, dsk, derive_costs(collection).nbytes)
    return {key: derived_seconds(operations.of(key)) for key in dsk}


def test_every_kind_of_operation_has_a_rate_and_a_measurement():
    assert set(RATES) == set(KINDS)
    assert set(OPERATIONS) == set(KINDS) - {"view", "read", "other", "grouped", "combining"}


def test_a_product_takes_time_for_its_multiplications_more_than_for_its_bytes():
    def product(n):
        return seconds_of(TaskOperation("product", 16 * n * n, 8 * n * n, (8 * n * n, 8 * n * n)))

    assert 7 < product(8000) / product(4000) < 8


def test_a_slice_takes_time_for_what_it_returns():
    x = da.ones((1000, 1000), chunks=1000).map_blocks(np.copy)
    whole = durations(x)
    cut = durations(x[:10].map_blocks(np.copy))
    assert max(cut.values()) < max(whole.values()) + 0.001
    assert seconds_of(TaskOperation("slice", 800 * MIB, 8, (800 * MIB, 0))) < 1e-6


def test_a_view_takes_no_time():
    assert seconds_of(TaskOperation("view", 800 * MIB, 800 * MIB, (800 * MIB, 0))) == 0


def test_a_reduction_of_several_inputs_puts_them_into_one_array_first():
    one, two = (
        seconds_of(TaskOperation("reduction", 16 * MIB, 8, (8 * MIB, 8 * MIB), inputs))
        for inputs in (1, 2)
    )
    assert two - one == pytest.approx(16 * MIB / CONCATENATION)


def test_larger_chunks_take_longer():
    def mean(size):
        return max(durations(da.random.random(size, chunks=size).mean()).values())

    assert OVERHEAD < mean(10) < mean(1_000_000) < mean(10_000_000)


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


def test_sizes_that_the_graph_does_not_tell_are_guessed():
    x = [delayed(bytes)(1000), delayed(bytes)(2000)]
    total = delayed(len)(x)
    dsk, _ = materialize(*expression([total]))
    assert derive_costs(total).nbytes.keys() == dsk.keys()


def test_counts_that_are_stored_once_are_written_out_where_partial_results_are_combined():
    counted = TaskOperation("reduction", 32 * MIB, 16 * MIB, (8 * MIB, 8 * MIB), 4)
    whole = counted._replace(input_nbytes=64 * MIB)
    assert seconds_of(counted) == seconds_of(whole)


def test_with_the_plugin_several_inputs_are_reduced_without_putting_them_into_one_array():
    apart = TaskOperation("reduction", 16 * MIB, 8, (8 * MIB, 8 * MIB), 2, 16 * MIB)
    whole = apart._replace(inputs=1)
    assert seconds_of(apart, plugin=True) == seconds_of(whole, plugin=True) < seconds_of(whole)


def test_with_the_plugin_what_stays_within_a_task_takes_little_time():
    alone = TaskOperation("elementwise", 16 * MIB, 8 * MIB, (8 * MIB, 8 * MIB), 2, 16 * MIB, True)
    inside = alone._replace(received=0, last=False)
    assert seconds_of(inside, plugin=True) < seconds_of(alone, plugin=True) / 4
    assert seconds_of(inside) == seconds_of(alone)


def test_with_the_plugin_nothing_takes_longer():
    assert all(rate.plugin >= rate.stock for rate in RATES.values())
    alone = TaskOperation("elementwise", 16 * MIB, 8 * MIB, (8 * MIB, 8 * MIB), 2, 16 * MIB)
    for kind in FUSED:
        assert seconds_of(alone._replace(kind=kind, received=0, last=False), plugin=True) <= (
            seconds_of(alone._replace(kind=kind))
        )
