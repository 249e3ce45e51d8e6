import dask.array as da

from dask_marsched.host.graph.array_layers import read_layers
from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.host.twin.temporaries import temporaries


def test_intermediate_results_of_fused_tasks():
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    expr, keys = expression([((x + x.T) ** 2).sum()])
    tasks, _ = materialize(expr, keys)
    found = temporaries(tasks, read_layers(expr))
    partial = [nbytes for key, nbytes in found.items() if key[0].startswith("sum-")]
    # the sum and its square, which are 100 x 100 elements each
    assert set(partial) == {2 * 80_000}
    assert len(partial) == 12  # on the diagonal the source is fused in as well


def test_tasks_that_are_not_fused_have_none():
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    expr, keys = expression([x.rechunk(200).persist(scheduler="sync")])
    tasks, _ = materialize(expr, keys)
    assert temporaries(tasks, read_layers(expr)) == {}
