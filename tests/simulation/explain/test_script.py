"""Scripts that are explained; most run in this process, with the tools of the command."""

import json
import subprocess
import textwrap

import dask
import distributed
import pytest
from click.testing import CliRunner

from dask_marsched.cli import marsched
from dask_marsched.simulation.explain.script import ScriptError, explain_script
from tests.processes import dask_command, local_cluster

HEAD = """
import sys
import dask
import dask.array as da
x = da.random.default_rng(0).random((800, 800), chunks=200)
"""


@pytest.fixture
def explained(tmp_path):
    """``explained(source, *arguments, everything=False)``: what is shown, as (heading, page)."""

    def explained(source, *arguments, everything=False, **options):
        script = tmp_path / "script.py"
        script.write_text(HEAD + textwrap.dedent(source))
        pages = []
        count = explain_script(
            script,
            arguments,
            everything=everything,
            show=lambda where, page: pages.append((where, page)),
            **{"isolated": False, "time_limit": 0} | options,
        )
        assert count == len(pages)
        return pages

    return explained


def test_a_script_stops_at_its_first_computation(explained, tmp_path):
    marker = tmp_path / "went-on"
    ((where, page),) = explained(
        f"""
        assert __name__ == "__main__" and sys.argv[1:] == ["--size", "3"]
        try:
            (x + 1).sum().compute()
        except Exception:
            pass
        open({str(marker)!r}, "w")
        """,
        "--size",
        "3",
    )
    assert where == "Computation 1, computed in line 9 of script.py"
    assert page.tasks > 16
    assert not marker.exists()


@pytest.mark.extended
@pytest.mark.parametrize(
    "call",
    [
        "x.sum().compute()",
        "x.sum().compute(scheduler='synchronous')",
        "dask.compute(x.sum(), {'a': [x.mean()]})",
        "x.persist()",
        "dask.persist(x)",
        "float(x.sum())",
        "import numpy; numpy.asarray(x)",
        "class Sink:\n    def __setitem__(self, k, v): raise AssertionError\nda.store(x, Sink())",
        "x[x > 0.5].compute_chunk_sizes()",
        "dask.base.compute_as_if_collection(da.Array, x.dask, x.__dask_keys__())",
        "with dask.config.set(scheduler='processes'): dask.delayed(x).compute()",
        "import threading; t = threading.Thread(target=x.compute); t.start(); t.join()",
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_way_to_compute_is_explained(explained, call):
    ((_, page),) = explained(call)
    assert page.tasks >= 16


@pytest.mark.parametrize(
    "call",
    [
        "x.to_zarr({path!r})",
        "da.to_zarr(x, {path!r}, mode='w')",
        "x.to_zarr({path!r}, compute=False).compute()",
        "da.to_npy_stack({path!r}, x)",
        "import xarray as xr; xr.Dataset({{'t': (('a', 'b'), x)}}).to_zarr({path!r}, mode='w')",
        "import xarray as xr; xr.DataArray(x, name='t').to_netcdf({path!r})",
        "import dask.bag as db; db.from_sequence(range(99)).map(str).to_textfiles({path!r})",
        "import dask.dataframe as dd; dd.from_dict({{'a': range(99)}}, 20)"
        ".to_parquet({path!r}, overwrite=True)",
        "import dask.dataframe as dd; dd.from_dict({{'a': range(99)}}, 20)"
        ".to_parquet({path!r}, compute=False).compute()",
    ],
)
def test_what_would_be_written_is_explained_and_not_touched(explained, tmp_path, call):
    target = tmp_path / "kept"
    target.mkdir()
    (target / "file").write_text("precious")
    pages = explained(call.format(path=str(target)))
    assert pages[0][1].tasks >= 16
    assert [path.name for path in target.iterdir()] == ["file"]
    assert (target / "file").read_text() == "precious"


@pytest.mark.parametrize(
    ("make", "size"),
    [
        ("Client(n_workers=3, threads_per_worker=2, memory_limit='2GiB')", (3, 2, 2 * 2**30)),
        ("Client(LocalCluster(n_workers=5, threads_per_worker=1, memory_limit=10**9))",
         (5, 1, 10**9)),
        ("Client('tcp://nowhere:8786')", (4, 1, 16 * 2**30)),
        ("dask_marsched.Client(n_workers=2, threads_per_worker=3, memory_limit='1GiB',"
         " scheduler_plugin=True)", (2, 3, 2**30)),
    ],
)  # fmt: skip
def test_clients_are_stand_ins_and_tell_the_size(explained, make, size):
    ((_, page),) = explained(
        f"""
        import dask_marsched
        from dask.distributed import Client, LocalCluster
        with {make} as client:
            client.wait_for_workers(1)
            print(client.dashboard_link)
            client.persist(x)
        """
    )
    found = (page.cluster[name] for name in ("workers", "threads", "memory_limit"))
    assert tuple(found) == size


def test_options_count_more_than_the_script(explained):
    ((_, page),) = explained(
        "import distributed\ndistributed.Client(n_workers=3)\nx.sum().compute()", workers=7
    )
    assert page.cluster["workers"] == 7


@pytest.mark.parametrize(
    "call",
    [
        "client.compute(x.sum()).result()",
        "client.gather(client.map(lambda i: i + 1, range(20)))",
        "client.submit(sum, client.map(abs, range(20))).result()",
        "distributed.wait(client.compute([x.sum(), x.mean()]))",
        "list(distributed.as_completed(client.map(abs, range(20))))",
        "distributed.get_client().persist(x)",
    ],
)
def test_what_a_client_computes_is_explained(explained, call):
    head = "import distributed\nclient = distributed.Client(n_workers=2, memory_limit='1GiB')\n"
    assert len(explained(head + call)) == 1


def test_graphs_are_built_as_with_a_client(explained):
    rechunk = "y = da.ones((400, 400), chunks=(1, 400)).rechunk((400, 1))\n"
    for head, expected in (("", False), ("import distributed\ndistributed.Client()\n", True)):
        explained(
            head + rechunk + f"assert any('p2p' in name for name in y.dask.layers) is {expected}\n"
            "x.sum().compute()"
        )


def test_all_computations_are_explained_and_done(explained, tmp_path):
    pages = explained(
        f"""
        import distributed
        with distributed.Client(n_workers=2) as client:
            y = (x * 2).persist()
            assert abs(float(y.mean()) - 1) < 0.1
            assert client.submit(sum, [1, 2]).result() == 3
            y.to_zarr({str(tmp_path / "out.zarr")!r})
        assert abs(float(da.from_zarr({str(tmp_path / "out.zarr")!r}).mean().compute()) - 1) < 0.1
        """,
        everything=True,
    )
    assert [where.split(" in ")[1] for where, _ in pages] == [
        f"line {line} of script.py" for line in (9, 10, 11, 12, 13)
    ]
    assert pages[0][0].startswith("Computation 1, persisted")


def test_nothing_stays_changed(explained):
    explained("import distributed\ndistributed.Client()\nx.sum().compute()")
    assert dask.delayed(sum)([1, 2]).compute() == 3
    with (
        local_cluster(n_workers=1, processes=False) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert client.submit(sum, [1, 2]).result(timeout=30) == 3


def test_errors_of_the_script_are_its_own(explained):
    with pytest.raises(ScriptError) as caught:
        explained("def f():\n    raise KeyError('mine')\nf()")
    lines = caught.value.report.splitlines()
    assert lines[0].startswith("Traceback")
    assert "script.py" in lines[1]
    assert lines[-1] == "KeyError: 'mine'"
    with pytest.raises(ScriptError, match="SyntaxError"):
        explained("this is no Python")
    with pytest.raises(ScriptError, match=r"Client\.run has no stand-in"):
        explained("import distributed\ndistributed.Client().run(print)")


def test_an_exit_of_the_script_is_an_exit(explained):
    with pytest.raises(SystemExit) as caught:
        explained("sys.exit(7)")
    assert caught.value.code == 7


def test_a_script_that_computes_nothing(explained):
    assert explained("print('done')") == []


def run(*arguments):
    return subprocess.run(
        dask_command("marsched", "explain", *map(str, arguments)),
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.extended
def test_the_command(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import helper, sys\nfrom distributed import Client\n"
        "if __name__ == '__main__':\n    with Client(n_workers=2, memory_limit='1GiB'):\n"
        "        print('arguments', sys.argv[1:])\n        helper.work().compute()\n"
    )
    (tmp_path / "helper.py").write_text(
        "import dask.array as da\n"
        "def work():\n    return da.ones((400, 400), chunks=100).map_blocks(double).sum()\n"
        "def double(block):\n    return 2 * block\n"
    )
    done = run("--time-limit", "0s", "--workers", "3", script, "--workers", "x")
    assert done.returncode == 0, done.stderr
    assert "arguments ['--workers', 'x']" in done.stdout
    assert "Computation 1, computed in line 6 of script.py" in done.stdout
    assert "on 3 workers x" in done.stdout
    assert "1.00 GiB each" in done.stdout


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("print('nothing')", 1, "computes nothing with Dask"),
        ("import sys; sys.exit(7)", 7, ""),
    ],
)
def test_exit_codes(tmp_path, source, code, message):
    script = tmp_path / "script.py"
    script.write_text(source)
    result = CliRunner().invoke(marsched, ["explain", str(script)])
    assert result.exit_code == code
    assert message in result.output


@pytest.mark.parametrize(
    "options",
    [["--budget", "much"], ["--deadline", "0s"], ["--workers", "0"], ["--time-limit", "x"]],
)
def test_wrong_options(tmp_path, options):
    (tmp_path / "script.py").write_text("")
    result = CliRunner().invoke(marsched, ["explain", *options, str(tmp_path / "script.py")])
    assert result.exit_code == 2
    assert options[0] in result.output
    assert CliRunner().invoke(marsched, ["explain", "nowhere.py"]).exit_code == 2


@pytest.mark.extended
def test_json(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import dask.array as da\nda.ones((4, 4), chunks=2).sum().compute()")
    result = CliRunner().invoke(marsched, ["explain", "--json", "--time-limit", "0s", str(script)])
    (page,) = json.loads(result.output)
    assert page["computation"] == "Computation 1, computed in line 2 of script.py"
    assert page["stock"]["policy"] == "stock"
