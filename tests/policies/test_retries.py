"""Which failures are tried again, and when."""

import math

import pytest

from dask_marsched.policies.retries import RetryRule

RULE = RetryRule(3, ["OSError", "MemoryError", "ClientPayloadError"])


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("OSError(5, 'Input/output error')", True),
        ("ConnectionResetError(104, 'Connection reset by peer')", True),
        ("TimeoutError()", True),
        ("MemoryError()", True),
        ("ClientPayloadError('not complete')", True),
        ("aiohttp.client_exceptions.ClientPayloadError('not complete')", True),
        ("FileNotFoundError(2, 'No such file')", False),
        ("PermissionError(13, 'Permission denied')", False),
        ("ZeroDivisionError('division by zero')", False),
        ("ValueError('OSError(5)')", False),
        ("", False),
    ],
)
def test_errors_of_the_infrastructure_are_recognized(error, expected):
    assert math.isfinite(RULE.wait(error, 0)) is expected


def test_each_time_takes_twice_as_long_and_there_is_an_end():
    assert [RULE.wait("OSError()", tried) for tried in range(4)] == [1.0, 2.0, 4.0, math.inf]
    assert RetryRule(10_000, ["OSError"]).wait("OSError()", 9_000) == 60.0
    assert RULE.wait("KeyError(1)", 0) == math.inf


def test_by_default_nothing_is_tried_again():
    assert RetryRule(0, ["OSError"]).wait("OSError()", 0) == math.inf
