import functools
import operator

import dask.array as da
import numpy as np
import pytest
from dask.array.reductions import mean_chunk, moment_chunk

from dask_marsched.host.twin.operation_kinds import (
    KINDS,
    TaskOperation,
    TaskOperations,
    kind_of,
    multiplications,
)
from dask_marsched.host.twin.scheduler import expression, materialize
from tests.simulation.local_costs import derive_costs

CHUNK = 100 * 100 * 8


def operations(collection):
    expr, keys = expression([collection])
    dsk, _ = materialize(expr, keys)
    found = TaskOperations(expr, dsk, derive_costs(collection).nbytes)
    return [operation for key in dsk for operation in found.of(key)]


def of_kind(collection, kind):
    return [operation for operation in operations(collection) if operation.kind == kind]


def square():
    return da.random.random((200, 200), chunks=100)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (np.add, "elementwise"),
        (operator.mul, "elementwise"),
        (np.exp, "transcendental"),
        (functools.partial(np.sum, axis=0), "reduction"),
        (functools.partial(functools.partial(np.var), axis=0), "moments"),
        (np.linalg.qr, "qr"),
        (np.transpose, "transpose"),
        (np.reshape, "view"),
        (np.nansum, "nan"),
        (functools.partial(mean_chunk, sum=np.nansum), "nan"),
        (functools.partial(moment_chunk, sum=np.nansum), "moments"),
        (operator.getitem, "slice"),
        (lambda x: x, "other"),
        (type("Unhashable", (), {"__hash__": None, "__call__": abs})(), "other"),
    ],
)
def test_kinds_of_functions(function, kind):
    assert kind in KINDS
    assert kind_of(function) == kind


def test_the_steps_of_a_fused_task_are_separate_operations():
    found = operations((square() + 1).sum(axis=0))
    assert sum(o.kind == "random" for o in found) == 4
    added = [o for o in found if o.kind == "elementwise"]
    assert [(o.input_nbytes, o.nbytes) for o in added] == [(CHUNK, CHUNK)] * 4
    summed = [o for o in found if o.kind == "reduction" and o.input_nbytes == CHUNK]
    assert [o.nbytes for o in summed] == [100 * 8] * 4


def test_multiplications_follow_from_bytes():
    x = da.random.random((200, 50), chunks=(100, 50))
    products = of_kind(x @ x.T, "product")
    assert len(products) == 4
    assert [multiplications(o) for o in products] == pytest.approx([100 * 50 * 100] * 4)
    alone = TaskOperation("product", CHUNK, CHUNK, (CHUNK, 0))
    assert multiplications(alone) == pytest.approx(100**3)


def test_reading_from_a_store_is_no_slice(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = str(tmp_path / "a.zarr")
    zarr.open(path, mode="w", shape=(200, 200), chunks=(100, 100), dtype="f8")[:] = 1
    reads = of_kind(da.from_zarr(path) + 1, "read")
    assert [o.nbytes for o in reads] == [CHUNK] * 4
    assert not of_kind(square()[:50] + 1, "read")
    assert of_kind(square()[:50], "slice")


def test_a_square_is_a_product():
    assert not of_kind(square() ** 2 + 1, "transcendental")
    assert len(of_kind(square() ** 2 + 1, "elementwise")) == 8
    assert len(of_kind(square() ** 3 + 1, "transcendental")) == 4


def test_a_step_tells_what_it_reads_of_other_tasks_and_whether_it_makes_the_result():
    x, y = (da.random.random((200, 200), chunks=100).persist() for _ in range(2))
    found = [o for o in operations((x - y) / (x + y)) if o.kind == "elementwise"]
    assert len(found) == 3 * 4
    assert sum(o.received for o in found) == 4 * 2 * CHUNK
    assert [o.input_nbytes for o in found if o.last] == [2 * CHUNK] * 4


def test_a_step_of_unknown_size_is_as_large_as_its_largest_input():
    x = da.random.random((200, 200), chunks=100).persist()
    sizes = {o.nbytes for o in operations(abs(x[1:] - x[:-1]).max()) if o.kind == "elementwise"}
    assert max(sizes) <= CHUNK
    assert min(sizes) >= 90 * 8
