"""Values as JSON."""

import enum
import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.api.handler import to_json


class Colour(enum.IntEnum):
    RED = 3


def strict(text):
    def refuse(name):
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def test_what_json_does_not_have():
    value = {
        ("x", 0): math.nan,
        "inf": [math.inf, 1.5],
        "set": {1},
        "nan": np.float64("nan"),
        "enum": Colour.RED,
        "object": object,
    }
    assert strict(to_json(value)) == {
        "('x', 0)": None,
        "inf": [None, 1.5],
        "set": [1],
        "nan": None,
        "enum": 3,
        "object": "<class 'object'>",
    }


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.dictionaries(LEAVES, inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(NESTED)
def test_whatever_it_is_the_result_is_json(value):
    strict(to_json(value))
