"""Shows without a message whether a worker's shared memory can be opened from here.

A worker that shares memory binds an abstract Unix socket, which ends with its process. Its name
hashes all that must match: the user, the user and pid namespaces, and the protocol version.
A process that a task forks does not keep it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import weakref
from collections.abc import Iterable
from contextlib import ExitStack
from functools import lru_cache

#: Increased whenever a worker could no longer read another one's handles.
PROTOCOL = 1


_claims: weakref.WeakSet[socket.socket] = weakref.WeakSet()


@lru_cache(maxsize=1024)
def _name(address: str) -> bytes:
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("user", "pid")]
    parts = "\n".join([str(PROTOCOL), str(os.getuid()), *namespaces, address])
    digest = hashlib.blake2b(parts.encode(), digest_size=24).hexdigest()
    return b"\0dask-marsched-" + digest.encode()


def claim(addresses: Iterable[str]) -> ExitStack:
    """Claim a worker's addresses for peers to find, until the claim is closed.

    Raises OSError if one is taken, or if this is not supported.
    """
    with ExitStack() as sockets:
        for address in sorted(set(addresses)):
            # A datagram socket, so that a probe opens no connection to accept.
            made = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            made.bind(_name(address))
            _claims.add(made)
        return sockets.pop_all()


def is_claimed(address: str) -> bool:
    """Whether a process whose memory can be opened from here claims an address."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(_name(address))
    except OSError:
        return False
    return True


def _end_in_child() -> None:
    # The child may outlive the worker, whose next process claims the same address.
    for claimed in list(_claims):
        claimed.close()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(after_in_child=_end_in_child)
