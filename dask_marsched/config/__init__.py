"""The options below ``marsched`` in Dask's configuration: defaults, checks, settings."""

from dask_marsched.config.settings import (
    NAMESPACE,
    OPTIONS,
    Option,
    Settings,
    changed_options,
    check,
    register_defaults,
)

__all__ = [
    "NAMESPACE",
    "OPTIONS",
    "Option",
    "Settings",
    "changed_options",
    "check",
    "register_defaults",
]
