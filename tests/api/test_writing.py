"""Who may write."""

import pytest

from dask_marsched.api.parameters import RefusedError
from dask_marsched.api.writing import check_writing

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "headers",
    [
        JSON,
        {"Content-Type": "Application/JSON; charset=utf-8"},
        {**JSON, "Origin": "http://host:8787"},
        {**JSON, "Origin": "https://HOST:8787", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_allowed(headers):
    check_writing(True, headers, "host:8787")
    with pytest.raises(RefusedError, match="only reads") as refused:
        check_writing(False, headers, "host:8787")
    assert refused.value.status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({**JSON, "Origin": "http://evil"}, 403),
        ({**JSON, "Origin": "http://host:8788"}, 403),
        ({**JSON, "Origin": "http://host:8787.evil"}, 403),
        ({**JSON, "Origin": "null"}, 403),
        ({**JSON, "Origin": "http://[host"}, 403),
        ({**JSON, "Origin": ""}, 403),
        ({**JSON, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**JSON, "Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_refused(headers, status):
    with pytest.raises(RefusedError) as refused:
        check_writing(True, headers, "host:8787")
    assert refused.value.status == status
