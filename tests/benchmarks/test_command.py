"""``python -m benchmarks``: what its options ask for."""

from click.testing import CliRunner

from benchmarks.command import bench


def test_two_experiments_at_once_are_refused():
    ended = CliRunner().invoke(bench, ["--tiny", "100", "--first-task", "100"])
    assert ended.exit_code == 2
    assert "--first-task and --tiny are experiments of their own" in ended.output
