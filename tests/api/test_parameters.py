"""Parameters of the API: what is read, and what is refused."""

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.api.parameters import (
    Parameter,
    RefusedError,
    read_fields,
    read_query,
    whole,
)

NUMBER = Parameter("limit", whole(1, 1000), "", 100)
STATE = Parameter("state", {"type": "string", "enum": ["ready", "running"]}, "")
KEY = Parameter("key", {"type": "string", "minLength": 1, "maxLength": 10}, "")
FORCE = Parameter("force", {"type": "boolean"}, "", False)
ALL = (NUMBER, STATE, KEY, FORCE)


def test_defaults_and_values():
    assert read_query(ALL, {}) == {"limit": 100, "state": None, "key": None, "force": False}
    given = {"limit": [b"7"], "key": ["ä".encode()]}
    assert read_query(ALL, given) == {"limit": 7, "state": None, "key": "ä", "force": False}


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"limit": [b"0"]}, "limit must be a whole number from 1 to 1000, not 0"),
        ({"limit": ["٣".encode()]}, "limit must be a whole number"),
        ({"limit": [b" 3"]}, "limit must be a whole number"),
        ({"limit": [b"1_0"]}, "limit must be a whole number"),
        ({"limit": [b"9" * 5000]}, "limit must be a whole number"),
        ({"limit": [b"1", b"2"]}, "limit must be given once"),
        ({"limit": [b"\xff"]}, "limit must be UTF-8"),
        ({"state": [b"busy"]}, "state must be one of ready, running, not 'busy'"),
        ({"key": [b""]}, "key must be a text of 1 to 10 characters"),
        ({"force": [b"1"]}, "force must be true or false"),
        ({"colour": [b"1"]}, "no parameter 'colour'; there are limit, state, key, force"),
    ],
)
def test_what_is_refused_is_named(query, message):
    with pytest.raises(RefusedError, match=message) as refused:
        read_query(ALL, query)
    assert refused.value.status == 400
    assert refused.value.parameter == next(iter(query))
    assert len(refused.value.message) < 300


def test_fields():
    assert read_fields((FORCE,), {}) == {"force": False}
    assert read_fields((FORCE,), {"force": True}) == {"force": True}
    for bad in ([], None, {"force": "true"}, {"force": 1}, {"other": 1}):
        with pytest.raises(RefusedError):
            read_fields((FORCE,), bad)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.none())


@pytest.mark.extended
@pytest.mark.parametrize("parameter", ALL, ids=lambda p: p.name)
@given(value=VALUES | st.sampled_from(["ready", "running"]))
def test_what_is_accepted_is_what_the_schema_says(parameter, value):
    """Fields and schema agree but for JSON's 1.0, which is a whole number to a schema."""
    valid = jsonschema.Draft202012Validator(parameter.schema()).is_valid(value)
    if isinstance(value, float) and value.is_integer():
        return
    try:
        assert parameter.check(value) == value
        accepted = True
    except RefusedError:
        accepted = False
    assert accepted == valid


@given(given_text=st.text())
def test_text_is_read_or_refused(given_text):
    for parameter in ALL:
        try:
            value = parameter.read(given_text)
        except RefusedError:
            continue
        assert value == given_text or type(value) in (int, bool)
        assert parameter.check(value) == value
