"""Reads the table of suites, and the tests that are expected to fail with the plugin."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import yaml

HERE = Path(__file__).parent
MOST_EXPECTED = 25


@dataclass(frozen=True)
class Suite:
    """A suite of tests that others wrote; `suites.yaml` says what its fields mean."""

    package: str
    tests: list[str]
    repository: str = ""
    ref: str = "{version}"
    config: str = "pyproject.toml"
    keep: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    stock_options: list[str] = field(default_factory=list)
    plugin_options: list[str] = field(default_factory=list)
    plugin_environment: dict[str, str] = field(default_factory=dict)


def suites() -> dict[str, Suite]:
    """Return the suites by name."""
    table = yaml.safe_load((HERE / "suites.yaml").read_text())
    return {name: Suite(**row) for name, row in table.items()}


def missing() -> dict[str, str]:
    """Return the packages that are not installed, by the name of their suite."""
    return {name: suite.package for name, suite in suites().items() if not find_spec(suite.package)}


def expected() -> dict[str, str]:
    """Return the reason for each test that fails with the plugin on purpose.

    Raises
    ------
    ValueError
        If there are more than `MOST_EXPECTED`, or one has no reason.
    """
    listed: dict[str, str] = yaml.safe_load((HERE / "expected.yaml").read_text()) or {}
    if len(listed) > MOST_EXPECTED:
        raise ValueError(f"{len(listed)} tests are listed, at most {MOST_EXPECTED} may be")
    if bare := [test for test, reason in listed.items() if not reason]:
        raise ValueError(f"no reason is given for {', '.join(bare)}")
    return listed
