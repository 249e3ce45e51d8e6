import dask
import dask.array as da
import numpy as np

from dask_marsched.host.twin.literals import data_nbytes, placeholder_data
from dask_marsched.host.twin.scheduler import expression, materialize


def nbytes_in(*collections):
    tasks, _ = materialize(*expression(list(collections)))
    return data_nbytes(tasks.values())


def test_arrays_in_fused_tasks_count_once():
    values = np.zeros(1000)
    assert nbytes_in(da.from_array(values, chunks=100).sum()) == 8000
    x = da.from_array(values, chunks=1000)
    assert nbytes_in(x.sum(), (x + 1).mean()) == 8000


def test_arguments_count():
    assert nbytes_in(dask.delayed(len)(np.zeros(50))) == 400
    assert nbytes_in(da.ones(1000, chunks=100).sum()) < 200


def test_a_placeholder_has_no_dependencies():
    task = placeholder_data(("x", 0))
    assert task.key == ("x", 0)
    assert not task.dependencies
