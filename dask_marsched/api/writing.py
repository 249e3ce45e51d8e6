"""Checks whether a request may change anything.

distributed 2026.8.0 has no token. So writing is accepted only where its own API, which can retire
workers, is served: ``distributed.scheduler.http.routes`` names ``distributed.http.scheduler.api``.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from dask_marsched.api.parameters import RefusedError

MODULE = "distributed.http.scheduler.api"
#: Upper bound on a request's body, bytes.
MOST_BYTES = 4096

_OFF = (
    "this API only reads here. It writes where the scheduler was started with "
    f"distributed.scheduler.http.routes containing {MODULE!r}, as Dask's own API"
)


def check_writing(writable: bool, headers: Mapping[str, str], host: str) -> None:
    """Raise a RefusedError unless a request may change something.

    Pages of other sites are refused: a browser asks for permission before it sends JSON to another
    origin, which this server never grants, and names the origin in the headers checked here.
    """
    if not writable:
        raise RefusedError(403, _OFF)
    site = headers.get("Sec-Fetch-Site", "none")
    if site not in ("none", "same-origin"):
        raise RefusedError(403, f"a page of another site may not write (Sec-Fetch-Site {site!r})")
    origin = headers.get("Origin")
    if origin is not None and not _same_host(origin, host):
        raise RefusedError(403, f"a page of another site may not write (Origin {origin[:100]!r})")
    media = headers.get("Content-Type", "").split(";")[0].strip().lower()
    if media != "application/json":
        raise RefusedError(415, "the body must be of Content-Type application/json")


def _same_host(origin: str, host: str) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and found.netloc.lower() == host.lower()
