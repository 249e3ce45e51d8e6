"""Proof that a worker's shared memory can be opened from here, without asking anybody.

A worker that shares memory claims a name: one of the abstract sockets of Linux, which exist in one
network namespace, have no file, and end with their process. The name holds what has to be equal
for two processes to open each other's memory: the user, the namespaces of users and of process
numbers, and what version of all this they speak. Nothing is ever sent.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterable
from functools import lru_cache

#: Raised whenever a worker could no longer read another one's handles.
PROTOCOL = 1


@lru_cache(maxsize=1024)
def _name(address: str) -> bytes:
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("user", "pid")]
    told = "\n".join([str(PROTOCOL), str(os.getuid()), *namespaces, address])
    return b"\0dask-marsched-" + hashlib.blake2b(told.encode(), digest_size=24).hexdigest().encode()


class AddressClaim:
    """The claim that whoever finds it can open the memory of the worker at these addresses.

    Raises
    ------
    OSError
        If the system has no such names, or a process has claimed one of them.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for address in sorted(set(addresses)):
                # Datagrams: finding it is no connection that somebody would have to accept
                made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sockets.append(made)
                made.bind(_name(address))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Withdraw the claim."""
        for made in self._sockets:
            made.close()


def is_claimed(address: str) -> bool:
    """Tell whether a process whose memory can be opened from here claims an address."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(_name(address))
    except OSError:
        return False
    return True
