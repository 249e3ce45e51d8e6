"""Defines the options of the ``marsched`` configuration namespace, and reads and checks them.

To add an option, add a field to `Settings`, its default and a comment to ``marsched.yaml``, and its
description to ``marsched-schema.yaml``, from which the documentation is made. A test checks that
they agree. `WorkerRegistration` chooses by prefix which of them workers get.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask.config
import yaml

from dask_marsched.config import checks

NAMESPACE = "marsched"
#: Defaults as in ``marsched.yaml``, by dotted key.
_DEFAULT_VALUES: dict[str, Any] = {}


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested mappings; ``_`` in a key is the same as ``-``."""
    for name, value in section.items():
        key = prefix + str(name).replace("_", "-")
        if isinstance(value, Mapping) and key not in _DEFAULT_VALUES:
            yield from _flat(value, key + ".")
        else:
            yield key, value


DEFAULTS: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("marsched.yaml").read_text(encoding="utf-8")
)
_DEFAULT_VALUES.update(_flat(DEFAULTS[NAMESPACE]))


def _option(key: str, check: checks.Check) -> Any:
    """Return the field of `Settings` for the option with this key below ``marsched``."""
    value = _DEFAULT_VALUES[key]
    return dataclasses.field(
        default=tuple(value) if isinstance(value, list) else value,
        metadata={"key": key, "check": check},
    )


@dataclasses.dataclass(frozen=True)
class Settings:
    """All options, checked and in plain units, as ``docs/reference/configuration.md`` lists them.

    Every attribute accepts what its option does (``restart_patience="1m"``) and then holds the
    plain value (``60.0``). A ValueError names the option and the accepted values.
    """

    enabled: bool = _option("enabled", checks.SWITCH)
    assignment: str = _option("assignment.policy", checks.policy_name("assignment"))
    ordering: str = _option("ordering.policy", checks.policy_name("ordering"))
    retries: int = _option("retries.infrastructure", checks.COUNT)
    retry_errors: tuple[str, ...] = _option("retries.errors", checks.NAMES)
    adopt: str = _option("failover.adopt", checks.one_of("off", "published", "all"))
    restart_patience: float = _option("failover.patience", checks.DURATION)
    journal_directory: str | None = _option("journal.directory", checks.PLACE)
    journal_patience: float = _option("journal.patience", checks.DURATION)
    second_runs: bool = _option("stragglers.second-run", checks.SWITCH)
    interrupt: bool = _option("cancelling.interrupt", checks.SWITCH)
    fusion: str = _option("fusion.graph", checks.one_of(*checks.FUSION))
    kernels_enabled: bool = _option("fusion.kernels", checks.SWITCH)
    kernels_exact: bool = _option("fusion.exact", checks.SWITCH)
    kernels_cache: str | None = _option("fusion.cache", checks.CACHE)
    quota_enabled: bool = _option("quota.enabled", checks.SWITCH)
    quota_fraction: float = _option("quota.fraction", checks.SHARE)
    store_shared: bool = _option("store.shared", checks.SWITCH)
    store_compression: str | None = _option("store.compression", checks.COMPRESSION)
    api_enabled: bool = _option("api.enabled", checks.SWITCH)
    observer_enabled: bool = _option("observer.enabled", checks.SWITCH)
    dashboard_pages: bool = _option("dashboard.pages", checks.SWITCH)

    @property
    def adopts(self) -> bool:
        """Whether other workers take over the shared results of a worker that dies."""
        return self.adopt != "off" and self.store_shared

    def __post_init__(self) -> None:
        for option in OPTIONS:
            value = option.read(getattr(self, option.attribute))
            object.__setattr__(self, option.attribute, value)

    @classmethod
    def from_config(cls, overrides: Mapping[str, Any] | None = None) -> Settings:
        """Read Dask's configuration of this process; ValueError for unknown options and values.

        `overrides` take precedence, by key with or without ``marsched.`` before it.
        """
        config = dask.config.get(NAMESPACE, default={})
        if not isinstance(config, Mapping):
            config = {"": config}
        given = dict(_flat(config)) | _REPLACED
        for key, value in (overrides or {}).items():
            given[_normal(key)] = value
        return cls(**{_find(key).attribute: value for key, value in given.items()})

    def replace(self, **changes: Any) -> Settings:
        """Return a copy with changed attributes; ValueError for unknown ones and their values."""
        known = [option.attribute for option in OPTIONS]
        unknown = sorted(changes.keys() - known)
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is not a setting; the settings are: {', '.join(known)}"
            )
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class Option:
    """An option: its key below ``marsched``, the attribute of `Settings` and the check."""

    key: str
    attribute: str
    parse: Callable[[Any], Any]
    accepted: Callable[[], str]

    def read(self, value: Any) -> Any:
        """Return ``value`` checked and converted, or raise a ValueError that names the option."""
        try:
            return self.parse(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise ValueError(
                f"{NAMESPACE}.{self.key} must be {self.accepted()}, not {value!r}"
            ) from None


OPTIONS: tuple[Option, ...] = tuple(
    Option(field.metadata["key"], field.name, *field.metadata["check"])
    for field in dataclasses.fields(Settings)
)
_BY_KEY = {option.key: option for option in OPTIONS}
_SECTIONS = frozenset(key.partition(".")[0] for key in _BY_KEY if "." in key)

# dask.config.update_defaults silently replaces a value by a section of the defaults. Values that
# the user had set in place of a section (`DASK_MARSCHED__ASSIGNMENT=dfs`) are kept here, so that
# they are reported as errors.
_REPLACED: dict[str, Any] = {}


def register_defaults() -> None:
    """Put the defaults into Dask's configuration, below everything set by the user."""
    user = dask.config.get(NAMESPACE, {})
    if isinstance(user, Mapping):
        _REPLACED.update((key, value) for key, value in _flat(user) if key in _SECTIONS)
    elif user is not None:
        _REPLACED[""] = user
    dask.config.update_defaults(DEFAULTS)


def check(key: str, value: Any) -> None:
    """Check a single option, whatever the rest is; ValueError for unknown options and values."""
    _find(_normal(key)).read(value)


def _normal(key: str) -> str:
    return key.removeprefix(NAMESPACE + ".").replace("_", "-")


def _find(key: str) -> Option:
    """Return the option with this key; raise a ValueError that lists all options if it is none."""
    known = _BY_KEY.get(key)
    if known is not None:
        return known
    if key in ("", *_SECTIONS):
        path = ".".join(filter(None, (NAMESPACE, key)))
        inside = ", ".join(name for name in _BY_KEY if not key or name.startswith(key + "."))
        raise ValueError(f"{path} is a section, not an option; the options in it are: {inside}")
    # The cutoff keeps other options of the same section from being suggested for that alone.
    near = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.8)
    hint = f" Did you mean {NAMESPACE}.{near[0]}?" if near else ""
    raise ValueError(
        f"{NAMESPACE}.{key} is not an option.{hint} "
        f"The options of {NAMESPACE} are: {', '.join(_BY_KEY)}"
    )


#: Parts of a worker that can be switched off: the attribute of `Settings`, and the option.
WORKER_PARTS = {
    "quota": ("quota_enabled", "marsched.quota.enabled"),
    "shared": ("store_shared", "marsched.store.shared"),
    "adoption": ("adopts", "marsched.failover.adopt"),
    "interrupts": ("interrupt", "marsched.cancelling.interrupt"),
    "kernels": ("kernels_enabled", "marsched.fusion.kernels"),
}


def changed_options(settings: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, value, default) of the options that are not at their default, in plain units."""
    usual = Settings()
    for option in OPTIONS:
        now, before = getattr(settings, option.attribute), getattr(usual, option.attribute)
        if now != before:
            yield option.key, now, before
