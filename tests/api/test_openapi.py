"""The description of the API, and that the documentation has what it has."""

from pathlib import Path

import jsonschema
import pytest

from dask_marsched.api.endpoints import ENDPOINTS
from dask_marsched.api.openapi import document
from tests.api.answers import ANSWERS

ROOT = Path(__file__).parents[2]


def schemas(value):
    if isinstance(value, dict):
        if "schema" in value:
            yield value["schema"]
        for item in value.values():
            yield from schemas(item)
    elif isinstance(value, list):
        for item in value:
            yield from schemas(item)


def test_schemas_are_schemas():
    found = [*schemas(document(ENDPOINTS, "0")), *ANSWERS.values()]
    assert len(found) > 3 * len(ENDPOINTS)
    for schema in found:
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_answer_is_checked_by_tests():
    assert ANSWERS.keys() == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}


def test_operations_have_names_of_their_own():
    described = document(ENDPOINTS, "0")
    names = [o["operationId"] for path in described["paths"].values() for o in path.values()]
    assert len(set(names)) == len(names) == len(ENDPOINTS)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.name)
def test_parameters(endpoint):
    """Each one in the path is declared, defaults are accepted, and only POST has a body."""
    names = {p.name for p in endpoint.path_parameters}
    assert {part.strip("{}") for part in endpoint.path.split("/") if "{" in part} == names
    for parameter in endpoint.options:
        if parameter.default is not None:
            assert parameter.check(parameter.default) == parameter.default
    assert endpoint.method in ("GET", "POST")


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: e.name)
def test_documentation(endpoint):
    rows = (ROOT / "docs" / "reference" / "json-api.md").read_text().splitlines()
    (row,) = [r for r in rows if r.startswith(f"| {endpoint.method} | `{endpoint.path}` |")]
    assert endpoint.about.split(".")[0] in row
    for parameter in endpoint.options:
        assert f"`{parameter.name}`" in row
    fields = ANSWERS[endpoint.method, endpoint.path].get("properties", {})
    rows = [r for r in rows if r.startswith(f"| `{endpoint.path}` |")]
    assert len(rows) == bool(fields)
    assert all(f"`{name}`" in row for row in rows for name in fields)
