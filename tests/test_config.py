"""The marsched namespace: defaults, units, environment, and an error for each mistake."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import dask.config
import jsonschema
import pytest
import yaml

import dask_marsched
from dask_marsched.config import OPTIONS, Settings, register_defaults

PACKAGE = Path(dask_marsched.__file__).parent
ROOT = Path(__file__).parents[1]
SCHEMA = yaml.safe_load((PACKAGE / "config" / "marsched-schema.yaml").read_text())
KEYS = {option.key for option in OPTIONS}

ACCEPTED = [
    ("enabled", False, False),
    ("assignment.policy", "dfs", "dfs"),
    ("ordering.policy", "mars", "mars"),
    ("retries.infrastructure", 3, 3),
    ("retries.errors", ["OSError", "ClientError"], ("OSError", "ClientError")),
    ("retries.errors", [], ()),
    ("cancelling.interrupt", True, True),
    ("stragglers.second-run", True, True),
    ("fusion.graph", "chains", "chains"),
    ("fusion.graph", False, "off"),
    ("failover.adopt", "all", "all"),
    ("failover.adopt", False, "off"),
    ("failover.patience", 0, 0.0),
    ("failover.patience", "1m", 60.0),
    ("journal.directory", None, None),
    ("journal.directory", "/var/lib/dask", "/var/lib/dask"),
    ("journal.patience", "2m", 120.0),
    ("quota.enabled", True, True),
    ("quota.fraction", 1, 1.0),
    ("store.shared", True, True),
    ("store.compression", "auto", "auto"),
    ("store.compression", None, None),
    ("store.compression", "off", None),
    ("observer.enabled", False, False),
    ("dashboard.pages", False, False),
    ("fusion.kernels", True, True),
    ("fusion.exact", True, True),
    ("fusion.cache", "/tmp/kernels", "/tmp/kernels"),
    ("fusion.cache", "off", None),
    ("api.enabled", False, False),
]
REFUSED = [
    ("fusion.kernels", "on", "true or false"),
    ("fusion.exact", 1, "true or false"),
    ("fusion.cache", 3, "a directory"),
    ("api.enabled", "on", "true or false"),
    ("journal.directory", 7, "a directory"),
    ("journal.patience", "soon", "a duration"),
    ("cancelling.interrupt", "yes", "true or false"),
    ("stragglers.second-run", "yes", "true or false"),
    ("failover.adopt", True, "off, published, all"),
    ("failover.patience", "for ever", "10ms"),
    ("retries.infrastructure", -1, "whole number"),
    ("retries.errors", "OSError", "a list of names"),
    ("retries.errors", [OSError], "a list of names"),
    ("retries.errors", {"OSError": 3}, "a list of names"),
    ("fusion.graph", "everything", "off, chains, subgraphs"),
    ("fusion.graph", True, "off, chains, subgraphs"),
    ("quota.enabled", "yes", "true or false"),
    ("store.shared", None, "true or false"),
    ("store.compression", 3, "auto"),
    ("store.compression", "", "auto"),
    ("store.compression", "lz5", "auto, lz4, snappy, zlib, zstd"),
    ("observer.enabled", "on", "true or false"),
    ("dashboard.pages", 1, "true or false"),
    ("quota.fraction", 1.1, "not above 1"),
    ("quota.fraction", 0, "above 0"),
    ("enabled", "perhaps", "true or false"),
    ("enabled", 1, "true or false"),
    ("assignment.policy", "dsf", "bfs, dfs, units"),
    ("assignment.policy", None, "bfs, dfs, units"),
    ("ordering.policy", "units", "dask, mars"),
    ("ordering.policy", ["dask"], "dask, mars"),
    ("ordering.policy", "", "dask, mars"),
]


def leaves(mapping: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in mapping.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def schema_options(schema: Mapping, prefix: str = "") -> Iterator[tuple[str, Mapping]]:
    for name, value in schema["properties"].items():
        assert value["description"], f"{prefix}{name} has no description"
        if "properties" in value:
            assert value["additionalProperties"] is False
            yield from schema_options(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def nested(key: str, value: object) -> dict:
    for part in reversed(("marsched." + key).split(".")):
        value = {part: value}
    return value


def test_defaults():
    settings = Settings.from_config()
    assert settings == Settings()
    assert (settings.assignment, settings.ordering) == ("units", "dask")
    config = yaml.safe_load((PACKAGE / "config" / "marsched.yaml").read_text())["marsched"]
    assert f"{settings.restart_patience:g}s" == config["failover"]["patience"]  # in its unit
    assert settings.enabled
    assert settings.fusion == "subgraphs"
    assert settings.kernels_enabled
    assert settings.kernels_exact
    assert settings.quota_enabled
    assert settings.store_shared
    assert settings.adopt == "all"


def documented_options():
    path = ROOT / "docs" / "_ext" / "options.py"
    spec = importlib.util.spec_from_file_location("documented_options", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_yaml_schema_documentation_and_program_agree():
    in_yaml = dict(
        leaves(yaml.safe_load((PACKAGE / "config" / "marsched.yaml").read_text())["marsched"])
    )
    in_schema = dict(schema_options(SCHEMA["properties"]["marsched"]))
    text = documented_options().overview()  # of docs/reference/configuration.md
    in_docs = dict(re.findall(r"^\| \[`marsched\.([a-z.-]+)`\]\S+ \| `([^`]+)` \| \S", text, re.M))
    assert set(in_yaml) == KEYS
    assert set(in_schema) == KEYS
    assert {key: yaml.safe_load(value) for key, value in in_docs.items()} == in_yaml


def test_every_option_has_a_comment_in_the_yaml():
    lines = (PACKAGE / "config" / "marsched.yaml").read_text().splitlines()
    options = [line for line in lines if re.match(r"\s+[a-z-]+: \S", line) and line[0] != "#"]
    scalars = [line for line in options if not re.match(r"\s+[a-z-]+:\s+#", line)]
    assert len(scalars) == len(OPTIONS)
    assert all(" # " in line or "  # " in line for line in scalars)


def test_schema_accepts_the_defaults():
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load((PACKAGE / "config" / "marsched.yaml").read_text()), SCHEMA)


@pytest.mark.parametrize(("key", "given", "read"), ACCEPTED)
def test_accepted(key, given, read):
    attribute = {option.key: option.attribute for option in OPTIONS}[key]
    with dask.config.set({"marsched." + key: given}):
        settings = Settings.from_config()
    assert getattr(settings, attribute) == read
    assert settings == Settings().replace(**{attribute: given})
    assert settings == Settings.from_config({key: given})
    assert type(getattr(settings, attribute)) is type(read)
    jsonschema.validate(nested(key, given), SCHEMA)


@pytest.mark.parametrize(("key", "given", "accepted"), REFUSED)
def test_refused(key, given, accepted):
    with (
        dask.config.set({"marsched." + key: given}),
        pytest.raises(ValueError, match=re.escape("marsched." + key)) as caught,
    ):
        Settings.from_config()
    assert accepted in str(caught.value)
    assert repr(given) in str(caught.value)


def test_every_option_is_tried():
    assert {key for key, *_ in ACCEPTED} == KEYS
    assert {key for key, *_ in REFUSED} == KEYS


def test_unknown_option_lists_the_options_and_the_nearest():
    with (
        dask.config.set({"marsched.asignment.policy": "dfs"}),
        pytest.raises(ValueError, match=r"marsched.asignment.policy is not an option") as caught,
    ):
        Settings.from_config()
    assert "Did you mean marsched.assignment.policy?" in str(caught.value)
    assert all(key in str(caught.value) for key in KEYS)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(nested("asignment.policy", "dfs"), SCHEMA)


def test_options_of_the_same_section_are_no_hint():
    with (
        dask.config.set({"marsched.assignment.stake": 0.5}),
        pytest.raises(ValueError, match=r"marsched.assignment.stake is not an option\. The opt"),
    ):
        Settings.from_config()


@pytest.mark.parametrize("key", ["placement.policy", "withholding.policy"])
def test_options_of_earlier_versions_are_errors(key):
    with (
        dask.config.set({f"marsched.{key}": "units"}),
        pytest.raises(ValueError, match=rf"marsched.{key} is not an option"),
    ):
        Settings.from_config()


def test_section_in_the_place_of_a_value():
    with (
        dask.config.set({"marsched.quota.fraction": {}}),
        pytest.raises(ValueError, match=r"marsched.quota.fraction must be a number"),
    ):
        Settings.from_config()


def test_value_in_the_place_of_a_section():
    with (
        dask.config.set({"marsched.assignment": "dfs"}),
        pytest.raises(ValueError, match=r"marsched.assignment is a section") as caught,
    ):
        Settings.from_config()
    assert "assignment.policy" in str(caught.value)
    assert "ordering.policy" not in str(caught.value)
    with (
        dask.config.set({"marsched": "dfs"}),
        pytest.raises(ValueError, match=r"marsched is a section"),
    ):
        Settings.from_config()


def test_unknown_setting():
    with pytest.raises(ValueError, match="'kapa' is not a setting"):
        Settings().replace(kapa=3)


def test_keys_may_be_written_with_underscores_and_the_namespace():
    expected = Settings(second_runs=True)
    assert Settings.from_config({"stragglers.second_run": True}) == expected
    assert Settings.from_config({"marsched.stragglers.second-run": True}) == expected
    with dask.config.set({"marsched.stragglers.second_run": True}):
        assert Settings.from_config() == expected


def test_defaults_survive_a_refresh():
    saved = dict(dask.config.config)
    try:
        dask.config.refresh()
        assert Settings.from_config() == Settings()
    finally:
        dask.config.config.clear()
        dask.config.config.update(saved)
    register_defaults()
    assert Settings.from_config() == Settings()


def run_with_environment(variable: str, value: str) -> subprocess.CompletedProcess:
    code = "from dask_marsched.config import Settings; print(Settings.from_config())"
    environment = {**os.environ, variable: value}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )


def test_environment_variable():
    done = run_with_environment("DASK_MARSCHED__STRAGGLERS__SECOND_RUN", "true")
    assert done.returncode == 0, done.stderr
    assert "second_runs=True" in done.stdout


def test_environment_variable_with_a_typing_error():
    done = run_with_environment("DASK_MARSCHED__FAILOVER__PATIENCEE", "1s")
    assert done.returncode != 0
    assert "Did you mean marsched.failover.patience?" in done.stderr


def test_environment_variable_in_the_place_of_a_section():
    done = run_with_environment("DASK_MARSCHED__ASSIGNMENT", "dfs")
    assert done.returncode != 0
    assert "marsched.assignment is a section" in done.stderr
