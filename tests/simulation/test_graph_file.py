import pickle
import sys

import cloudpickle
import dask
import dask.array as da
import pytest

import dask_marsched


@pytest.fixture
def path(tmp_path):
    return tmp_path / "saved.graph"


def load(path):
    return dask_marsched.load_graph(path, trusted=True)


def array():
    x = da.random.default_rng(0).random((300, 300), chunks=100)
    return ((x - x.mean(0)) ** 2).sum()


def labelled():
    xarray = pytest.importorskip("xarray")
    return xarray.Dataset({"t": (("a", "b"), da.ones((60, 60), chunks=20))}).mean("a")


def delayed():
    return dask.delayed(sum)([dask.delayed(abs)(-index) for index in range(5)])


@pytest.mark.parametrize("make", [array, labelled, delayed, lambda: [array(), delayed()]])
def test_a_loaded_graph_is_simulated_as_the_one_saved(path, make):
    collection = make()
    dask_marsched.save_graph(collection, path)
    # Loading changes the order within sets of equal hashes, and with it that of the timeline.
    first, second = (
        dask_marsched.simulate(one, policy="stock", workers=2, isolated=False, timeline=False)
        for one in (collection, load(path))
    )
    assert first == second
    assert first.tasks > 0


def test_a_loaded_graph_can_be_computed(path):
    dask_marsched.save_graph(delayed(), path)
    assert load(path).compute(scheduler="sync") == 10


def test_layers_stay_symbolic(path):
    dask_marsched.save_graph(da.ones((10_000, 10_000), chunks=10) + 1, path)
    assert path.stat().st_size < 50_000


def test_loading_warns_that_it_runs_code(path):
    dask_marsched.save_graph(array(), path)
    with pytest.warns(UserWarning, match="load only files whose origin you trust"):
        dask_marsched.load_graph(path)


class _Trap:
    def __reduce__(self):
        return (sys.exit, ("code of the file ran",))


def test_loading_runs_code(path):
    dask_marsched.save_graph(array(), path)
    lines = path.read_bytes().split(b"\n", 2)
    path.write_bytes(b"\n".join([*lines[:2], pickle.dumps(_Trap())]))
    with pytest.raises(SystemExit):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a graph file: dask_marsched.save_graph writes those"),
        (pickle.dumps([1]), "is not a graph file"),
        (b"dask-marsched graph\n", "is damaged"),
        (b"dask-marsched graph\n[]\nx", "is damaged"),
        (b'dask-marsched graph\n{"format": 0}\nx', "has the format 0, this version"),
        (b'dask-marsched graph\n{"format": 1}\n', "cannot be loaded: EOFError"),
    ],
)
def test_a_wrong_file_is_one_clear_error(path, content, message):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_a_graph_of_other_versions_that_cannot_be_loaded_names_them(path):
    dask_marsched.save_graph(array(), path)
    start, header, _ = path.read_bytes().split(b"\n", 2)
    header = header.replace(dask.__version__.encode(), b"2020.1.0")
    path.write_bytes(b"\n".join([start, header, b"cno_such_module\nname\n."]))
    with pytest.raises(ValueError, match=r"no_such_module.*dask 2020\.1\.0 instead of"):
        load(path)


def test_what_cannot_be_saved(path):
    with pytest.raises(TypeError, match="there is a int in it"):
        dask_marsched.save_graph([array(), 3], path)
    with pytest.raises(ValueError, match="not empty"):
        dask_marsched.save_graph([], path)
    generator = (index for index in range(3))
    with pytest.raises(TypeError, match=r"cannot be pickled.*generator"):
        dask_marsched.save_graph(dask.delayed(id)(dask.delayed(generator, traverse=False)), path)
    assert not path.exists()


def test_a_missing_file(path):
    with pytest.raises(FileNotFoundError):
        load(path)


def test_functions_of_the_main_module_are_in_the_file(path):
    code = cloudpickle.dumps(lambda: 3)
    dask_marsched.save_graph(dask.delayed(cloudpickle.loads(code))(), path)
    assert load(path).compute(scheduler="sync") == 3
