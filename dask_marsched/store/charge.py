"""Computes the memory to charge to one process: its own, and that of owners which are gone."""

from __future__ import annotations

import os
import re
import struct
from typing import NamedTuple

from dask_marsched.store.segment import CHARGE_OFFSET

_CHARGE = struct.Struct("=qqq")
_RESIDENT = re.compile(
    rb"^VmRSS:\s+(\d+) kB\nRssAnon:\s+\d+ kB\nRssFile:\s+(\d+) kB\nRssShmem:\s+(\d+) kB$",
    re.MULTILINE,
)


class Charge(NamedTuple):
    """Shared memory of a worker, bytes: held for it, and at most mapped into its resident set."""

    held: int  #: in its own segment
    adopted: int  #: mapped from owners that released it or died, by each process that maps it
    mapped: int


def write_charge(fd: int, charge: Charge) -> None:
    """Store the worker's charge in its segment, for its nanny to read."""
    os.pwrite(fd, _CHARGE.pack(*charge), CHARGE_OFFSET)


def read_charge(fd: int) -> Charge:
    """Return the charge written last, less what the segment has released since; zeros if none."""
    # A worker writes it a few times a second. Between two times it may release much, and take as
    # much private memory instead.
    held, adopted, mapped = _CHARGE.unpack(os.pread(fd, _CHARGE.size, CHARGE_OFFSET))
    return Charge(min(held, os.fstat(fd).st_blocks * 512), adopted, mapped)


def charged_memory(pid: int | str, charge: Charge) -> int:
    """Return the bytes to charge to a process (a pid or ``self``); may raise OSError."""
    total, _, shared = _resident(pid)
    return total - _surplus(shared, charge)


def unreclaimable_memory(pid: int | str, charge: Charge) -> int:
    """Return `charged_memory` without pages of files, which the kernel drops when it needs memory.

    Among them are results that are read from the spill file by mapping it.
    """
    total, files, shared = _resident(pid)
    return total - files - _surplus(shared, charge)


def shared_surplus(pid: int | str, charge: Charge) -> int:
    """Return by how many bytes the resident memory exceeds `charged_memory`."""
    return _surplus(_resident(pid)[2], charge)


def _surplus(shared: int, charge: Charge) -> int:
    # The kernel counts all shared pages that a process has touched as resident. Those that may be
    # ours are replaced by the process's own share.
    return min(shared, charge.mapped) - charge.held - charge.adopted


def _resident(pid: int | str) -> tuple[int, ...]:
    """Return the resident bytes of a process: all, those of files, those of shared memory."""
    # Read several times per task: pathlib and a buffer take as long as the kernel.
    with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
        found = _RESIDENT.search(status.read(1 << 16))  # a user may be in many groups
    if found is None:
        raise ProcessLookupError(f"process {pid} has no memory")
    return tuple(1024 * int(kib) for kib in found.groups())
