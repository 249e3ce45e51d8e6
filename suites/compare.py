"""Compares outcomes with and without the plugin, test by test."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from suites.runner import Result


@dataclass(frozen=True)
class Comparison:
    """What became of the tests of a suite.

    Attributes
    ----------
    passed : dict
        How many passed, with "stock" and with the "plugin".
    listed : list of str
        Tests that fail with the plugin and are expected to.
    unexpected : list of str
        Tests that pass with stock Dask, fail with the plugin and are not listed.
    stale : list of str
        Listed tests that have run and pass with the plugin.
    """

    passed: dict[str, int] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether everything is as expected."""
        return not self.unexpected and not self.stale


def compare(
    stock: Mapping[str, Result], plugin: Mapping[str, Result], expected: Collection[str]
) -> Comparison:
    """Compare the outcomes of the same tests."""
    passed_stock, passed_plugin = _passed(stock), _passed(plugin)
    lost = sorted(passed_stock - passed_plugin)
    failed = {_entry(test, expected) for test in plugin if plugin[test].outcome == "failed"}
    return Comparison(
        passed={"stock": len(passed_stock), "plugin": len(passed_plugin)},
        listed=[test for test in lost if _entry(test, expected) in expected],
        unexpected=[test for test in lost if _entry(test, expected) not in expected],
        stale=sorted({_entry(test, expected) for test in passed_plugin} & set(expected) - failed),
    )


def _entry(test: str, expected: Collection[str]) -> str:
    """Return the entry that a test is listed by: its name, or that without its parameters."""
    return test if test in expected else test.split("[")[0]


def _passed(results: Mapping[str, Result]) -> set[str]:
    return {test for test, result in results.items() if result.outcome == "passed"}
