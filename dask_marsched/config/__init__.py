"""Reads and checks the options below ``marsched`` in Dask's configuration."""

from dask_marsched.config.settings import (
    NAMESPACE,
    OPTIONS,
    WORKER_PARTS,
    Settings,
    changed_options,
    check,
    register_defaults,
)

__all__ = [
    "NAMESPACE",
    "OPTIONS",
    "WORKER_PARTS",
    "Settings",
    "changed_options",
    "check",
    "register_defaults",
]
