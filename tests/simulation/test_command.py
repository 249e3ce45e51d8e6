"""``dask marsched simulate``: a table, files, clear errors, exit codes."""

import json

import dask.array as da
import pytest
from click.testing import CliRunner

import dask_marsched
from dask_marsched.cli import marsched
from dask_marsched.simulation.cluster.faults import read_fault


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    path = tmp_path_factory.mktemp("graphs") / "saved.graph"
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    dask_marsched.save_graph((x + x.T).sum(), path)
    return path


@pytest.fixture
def run(graph, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # simulated in this process

    def run(*options, file=graph):
        return CliRunner().invoke(marsched, ["simulate", str(file), *map(str, options)])

    return run


def test_stock_stands_beside_the_default(run):
    result = run("--workers", 3, "--memory-limit", "100MiB")
    assert result.exit_code == 0, result.output
    head, table = result.output.split("\n\n")[:2]
    assert head.endswith("on 3 workers of 1 thread and 100.00 MiB")
    rows = table.splitlines()
    assert rows[0].split() == ["stock", "default", "ratio"]
    assert rows[1].startswith("makespan")
    assert "stock: most memory is held by" in result.output
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.extended
def test_json(run):
    result = run("--json", "--policy", "dfs", "--seed", 3, "--bandwidth", "50MB/s")
    found = json.loads(result.output)
    (report,) = found["reports"]
    assert report["policy"] == "dfs"
    assert report["cluster"]["seed"] == 3
    assert report["cluster"]["bandwidth"] == 50e6


def test_faults_reach_the_simulation(run):
    found = json.loads(run("--json", "--policy", "stock", "--fault", "kill:1@10ms").output)
    assert found["reports"][0]["tasks_recomputed"] > 0


@pytest.mark.extended
def test_trace_and_plot_are_written_for_each_policy(run, tmp_path):
    result = run("--trace", tmp_path / "trace.json", "--plot", tmp_path / "plot.svg")
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {
        "trace-stock.json", "trace-default.json", "plot-stock.svg", "plot-default.svg",
    }  # fmt: skip
    assert json.loads((tmp_path / "trace-stock.json").read_text())["traceEvents"]
    single = run("--policy", "stock", "--plot", tmp_path / "alone.png")
    assert single.exit_code == 0, single.output
    assert (tmp_path / "alone.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "text",
    ["", "kill", "kill:3", "kill:x@1s", "kill:3@", "kill:3@s", "kill:3@soon", "kill:3@1s:2",
     "kill:-1@1s", "pause:3@1s", "slow:3@1s:x", "slow:3@1s:4:5", "explode:1@1s", "kill:3@-1s",
     "join:scheduler@1s", "kill:scheduler@1s:x"],
)  # fmt: skip
def test_wrong_faults_are_told_apart(run, text):
    with pytest.raises(ValueError, match="fault"):
        read_fault(text)
    result = run("--fault", text)
    assert result.exit_code == 2
    assert f"fault {text!r}" in result.output


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--workers", "0"], 2, "--workers"),
        (["--threads", "x"], 2, "--threads"),
        (["--memory-limit", "big"], 2, "it must be bytes or a text like '16GiB', not 'big'"),
        (["--memory-limit", "GiB"], 2, "it must be bytes or a text like '16GiB', not 'GiB'"),
        (["--bandwidth", "0"], 2, "it must be more than 0, not '0'"),
        (["--latency", "-1s"], 2, "it must be seconds or a text like '1ms', not '-1s'"),
        (["--policy", "best"], 2, "'best' is not one of 'stock', 'default', "),
        (["--costs", "missing.costs"], 2, "--costs"),
        (["--seed", "x"], 2, "--seed"),
        (["--hosts", "9"], 1, "hosts must be a whole number between 1 and 4, not 9"),
        (["--plot", "plot.xyz"], 2, "has no ending that tells the kind of picture; accepted are"),
        (["--plot", "no/such/plot.png"], 2, "there is no directory no/such"),
        (["--trace", "no/such/trace.json"], 2, "there is no directory no/such"),
        (["--fault", "kill:9@1ms"], 1, "worker 9"),
    ],
)
def test_wrong_options_are_one_clear_error(run, options, code, message):
    result = run(*options)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.output.split())
    assert result.output.count("Error") == 1
    assert "Traceback" not in result.output


def test_a_latency_of_zero_is_accepted(run):
    assert run("--policy", "stock", "--latency", "0s").exit_code == 0


def test_a_file_that_is_no_graph(run):
    result = run(file=__file__)
    assert result.exit_code == 1
    assert "is not a graph file" in result.output
