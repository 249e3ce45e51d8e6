"""The options of ``python -m benchmarks``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dask_marsched.bench.workloads import GENERAL, Kind


@dataclass(kw_only=True)
class Options:
    """Options of the command line."""

    select: str
    policies: tuple[str, ...]
    repeat: int
    workers: int
    threads: int
    size: float
    chunk: str
    timeout: float
    json_path: Path | None
    markdown_path: Path | None
    held_out: bool
    against: str | None
    frisky_python: Path | None
    twin: bool
    simulated: tuple[int, ...]
    hosts: int | None
    rate: str
    uneven: bool
    workers_per_host: int
    cores: float | None
    planning: tuple[int, ...]
    first_task: tuple[int, ...]
    small: bool
    tiny: tuple[int, ...]
    pages: int | None
    observer: int | None
    memory_tight: bool
    memory_limit: str
    least_memory: bool
    transfer: bool
    kernels: bool
    elementwise: bool
    failover: bool
    restart: int | None
    seed: int
    back_after: tuple[int, ...]
    journal: bool
    tpch: Path | None
    programs: bool
    public: Path | None
    cancel: bool
    soak: float | None
    chaos: float | None
    kill_every: float | None

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kinds of workloads that run unless some are named."""
        return (Kind.HELD_OUT,) if self.held_out else GENERAL

    @property
    def names(self) -> tuple[str, ...]:
        """The names given with ``--select``."""
        return tuple(name.strip() for name in self.select.split(",") if name.strip())

    @property
    def command(self) -> str:
        """The command line as the user would type it."""
        return f"python -m benchmarks {shlex.join(sys.argv[1:])}".strip()
