"""Suites run in processes of their own, and are compared test by test."""

from __future__ import annotations

from suites import table
from suites.compare import compare
from suites.runner import Result, Runner
from suites.table import Suite, expected, suites

TESTS = """
import os, pytest

def test_passes(): pass
def test_fails_with_the_plugin(): assert "PLUGIN" not in os.environ, "for a reason"
def test_kills_its_process(): os.abort()
@pytest.mark.skip
def test_skipped(): pass
def test_comes_after(): pass
"""


def test_a_suite_is_compared(tmp_path, monkeypatch):
    # Four processes: none needs what other packages bring along for pytest.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "test_some.py").write_text(TESTS)
    suite = Suite(
        "some",
        ["test_some.py"],
        "some/one",
        options=["-p", "timeout"],
        plugin_environment={"PLUGIN": "1"},
    )
    runner = Runner(suite, tmp_path, tmp_path / "logs", limit=60, jobs=1)
    stock, plugin = (runner.run(["test_some.py"], on) for on in (False, True))
    fails = "test_some.py::test_fails_with_the_plugin"
    killed = Result("failed", "killed while it ran")
    assert stock["test_some.py::test_kills_its_process"] == killed
    assert {name.split("::")[1]: result.outcome for name, result in plugin.items()} == {
        "test_passes": "passed",
        "test_fails_with_the_plugin": "failed",
        "test_kills_its_process": "failed",
        "test_skipped": "skipped",
        "test_comes_after": "passed",
    }
    assert "for a reason" in plugin[fails].reason
    found = compare(stock, plugin, {})
    assert (found.passed, found.unexpected, found.agrees) == (
        {"stock": 3, "plugin": 2},
        [fails],
        False,
    )
    assert compare(stock, plugin, {fails: "on purpose"}).listed == [fails]
    assert compare(stock, stock, {fails: "on purpose"}).stale == [fails]


def test_an_entry_may_stand_for_all_parameters():
    passed, failed = Result("passed"), Result("failed")
    stock, plugin = {"a[1]": passed, "a[2]": passed}, {"a[1]": passed, "a[2]": failed}
    found = compare(stock, plugin, ["a"])
    assert (found.listed, found.unexpected, found.stale) == (["a[2]"], [], [])
    assert compare(stock, stock, ["a"]).stale == ["a"]
    assert compare(stock, plugin, ["a[1]"]).unexpected == ["a[2]"]


def test_the_tables_are_read():
    assert "distributed" in suites()
    assert all(expected().values())


def test_a_package_may_be_missing(tmp_path, monkeypatch):
    (tmp_path / "suites.yaml").write_text(
        "pip: {package: pip, tests: [tests]}\nother: {package: not_installed, tests: [tests]}\n"
    )
    monkeypatch.setattr(table, "HERE", tmp_path)
    assert table.missing() == {"other": "not_installed"}
