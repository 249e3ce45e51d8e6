"""Counts the memory that exists because of one process: shared pages count once, for their user."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

from dask_marsched.store.segment import CHARGE_OFFSET

_CHARGE = struct.Struct("=qq")
_RESIDENT = re.compile(rb"^VmRSS:\s+(\d+) kB$.*^RssShmem:\s+(\d+) kB$", re.MULTILINE | re.DOTALL)


class Charge(NamedTuple):
    """What its worker has to answer for.

    Attributes
    ----------
    held : int
        Bytes of shared memory that exist because of this worker.
    mapped : int
        Most bytes of its resident shared pages that may be ours.
    """

    held: int
    mapped: int


def write_charge(fd: int, charge: Charge) -> None:
    """Write down what the worker has to answer for, for its nanny to read."""
    os.pwrite(fd, _CHARGE.pack(*charge), CHARGE_OFFSET)


def read_charge(fd: int) -> Charge:
    """Return what `write_charge` wrote last; zeros if it never did."""
    return Charge(*_CHARGE.unpack(os.pread(fd, _CHARGE.size, CHARGE_OFFSET)))


def charged_memory(pid: int | str, charge: Charge) -> int:
    """Return the bytes of memory that exist because of a process.

    Resident memory as the kernel counts it holds all shared pages that the process has looked at,
    whoever they exist for. These are taken out, as far as they can be ours, and what the process
    has to answer for is put in.

    Parameters
    ----------
    pid : int or str
        Its number, or ``self``.
    charge : Charge
        What it has to answer for.

    Raises
    ------
    OSError
        If there is no such process, or the system does not tell.
    """
    resident, shared = _resident(pid)
    return resident - min(shared, charge.mapped) + charge.held


def shared_surplus(pid: int | str, charge: Charge) -> int:
    """Return by how many bytes resident memory exceeds `charged_memory`, which see."""
    return min(_resident(pid)[1], charge.mapped) - charge.held


def _resident(pid: int | str) -> tuple[int, int]:
    """Return the bytes of resident memory, and of shared memory among them."""
    found = _RESIDENT.search(Path(f"/proc/{pid}/status").read_bytes())
    if found is None:
        raise ProcessLookupError(f"process {pid} has no memory")
    resident, shared = (1024 * int(kib) for kib in found.groups())
    return resident, shared
