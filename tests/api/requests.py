"""Requests to the API of a scheduler in this process."""

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
from distributed import Scheduler
from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse

from tests.api.answers import ANSWERS

JSON = {"Content-Type": "application/json"}
#: distributed's own API is served with this, and so ours writes.
WRITABLE = {
    "distributed.scheduler.http.routes": [
        "distributed.http.scheduler.api",
        "distributed.http.health",
    ]
}


async def request(
    s: Scheduler,
    path: str,
    method: str = "GET",
    *,
    body: str | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    root: str = "/marsched/api/v1",
) -> HTTPResponse:
    url = f"http://127.0.0.1:{s.http_server.port}{root}{path}"
    asked = HTTPRequest(
        url, method, dict(headers or {}), body, allow_nonstandard_methods=True, request_timeout=20
    )
    return await AsyncHTTPClient().fetch(asked, raise_error=False)


async def get(s: Scheduler, path: str) -> Any:
    """Return what the API answers, which must have the fields of `ANSWERS`."""
    answer = await request(s, path)
    assert answer.code == 200, answer.body
    found = json.loads(answer.body)
    validate(path, found)
    return found


async def refused(s: Scheduler, path: str, method: str = "GET", **given: Any) -> tuple[int, str]:
    """Return the status and the message of a request that is not answered."""
    answer = await request(s, path, method, **given)
    assert answer.headers["Content-Type"] == "application/json"
    told = json.loads(answer.body)["error"]
    assert told["status"] == answer.code
    return answer.code, told["message"]


def validate(path: str, found: Any, method: str = "GET") -> None:
    words = path.partition("?")[0].split("/")
    for (of, template), schema in ANSWERS.items():
        parts = template.split("/")
        alike = len(parts) == len(words) and all(
            part == word or part.startswith("{") for part, word in zip(parts, words, strict=True)
        )
        if alike and of == method:
            jsonschema.Draft202012Validator(schema).validate(found)
            return
    raise AssertionError(f"{path} is not described")
