"""Who may write: what a request must bring to change anything.

distributed 2026.8.0 has no token. Its own API, which can retire workers, is served only where
``distributed.scheduler.http.routes`` names ``distributed.http.scheduler.api``. Where that is
served, ours writes too; else it only reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from dask_marsched.api.parameters import RefusedError

#: The module whose routes distributed's own API is.
MODULE = "distributed.http.scheduler.api"
#: Bytes of a request's body.
MOST_BYTES = 4096

_OFF = (
    "this API only reads here. It writes where the scheduler was started with "
    f"distributed.scheduler.http.routes containing {MODULE!r}, as Dask's own API"
)


def check_writing(writable: bool, headers: Mapping[str, str], host: str) -> None:
    """Raise unless a request may change something.

    A page of another site that a user has open must not: browsers ask before they send JSON to
    another origin, and nobody here says yes. They also tell where a request comes from.

    Parameters
    ----------
    writable
        Whether distributed's own API is served.
    headers
        The request's.
    host
        Host and port that the request was sent to.

    Raises
    ------
    RefusedError
        It may not.
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
