"""The options of the ``marsched`` configuration namespace, checked.

``marsched.yaml`` holds the defaults and a comment for each option, ``marsched-schema.yaml``
describes them for other tools. The table ``OPTIONS`` below is what the program itself goes by;
a test checks that the three agree.
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


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: its key below ``marsched``, the attribute of `Settings`, its check.

    ``parse`` returns the value in the type and unit of `Settings` and raises any of
    ``ValueError``, ``TypeError``, ``KeyError``, ``OverflowError`` where it is not accepted;
    ``accepted`` says what is, for the message.
    """

    key: str
    attribute: str
    parse: Callable[[Any], Any]
    accepted: Callable[[], str]

    def read(self, value: Any) -> Any:
        """Return ``value`` checked and converted.

        Raises
        ------
        ValueError
            If it is not accepted; the message names the option and what is accepted.
        """
        try:
            return self.parse(value)
        except (ValueError, TypeError, KeyError, OverflowError):
            raise ValueError(
                f"{NAMESPACE}.{self.key} must be {self.accepted()}, not {value!r}"
            ) from None


OPTIONS: tuple[Option, ...] = (
    Option("enabled", "enabled", *checks.SWITCH),
    Option("assignment.policy", "assignment", *checks.named("assignment")),
    Option("ordering.policy", "ordering", *checks.named("ordering")),
    Option("placement.policy", "placement", *checks.named("placement")),
    Option("withholding.policy", "withholding", *checks.named("withholding")),
    Option("retries.infrastructure", "retries", *checks.COUNT),
    Option("retries.errors", "retry_errors", *checks.NAMES),
    Option("failover.adopt", "adopt", *checks.ADOPTION),
    Option("failover.patience", "restart_patience", *checks.DURATION),
    Option("protection.enabled", "protects", *checks.SWITCH),
    Option("stragglers.second-run", "second_runs", *checks.SWITCH),
    Option("cancelling.interrupt", "interrupt", *checks.SWITCH),
    Option("fusion.graph", "fusion", *checks.GRAPH_FUSION),
    Option("fusion.kernels", "kernels_enabled", *checks.SWITCH),
    Option("fusion.exact", "kernels_exact", *checks.SWITCH),
    Option("fusion.cache", "kernels_cache", *checks.CACHE),
    Option("quota.enabled", "quota_enabled", *checks.SWITCH),
    Option("quota.fraction", "quota_fraction", *checks.SHARE),
    Option("store.shared", "store_shared", *checks.SWITCH),
    Option("store.compression", "store_compression", *checks.COMPRESSION),
    Option("api.enabled", "api_enabled", *checks.SWITCH),
    Option("observer.enabled", "observer_enabled", *checks.SWITCH),
    Option("dashboard.pages", "dashboard_pages", *checks.SWITCH),
)
_BY_KEY = {option.key: option for option in OPTIONS}
_SECTIONS = frozenset(key.partition(".")[0] for key in _BY_KEY if "." in key)


def _load_defaults() -> dict[str, Any]:
    text = Path(__file__).with_name("marsched.yaml").read_text(encoding="utf-8")
    defaults: dict[str, Any] = yaml.safe_load(text)
    return defaults


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested mappings; ``_`` in a key is the same as ``-``."""
    for name, value in section.items():
        key = prefix + str(name).replace("_", "-")
        if isinstance(value, Mapping) and key not in _BY_KEY:
            yield from _flat(value, key + ".")
        else:
            yield key, value


DEFAULTS = _load_defaults()
_DEFAULT_VALUES = dict(_flat(DEFAULTS[NAMESPACE]))
_DEFAULT_OF = {option.attribute: _DEFAULT_VALUES[option.key] for option in OPTIONS}

# dask.config.update_defaults silently replaces a value by a section of the defaults. What was
# there (`DASK_MARSCHED__ASSIGNMENT=dfs`, set before the import) is kept, so that it can be
# reported instead of being lost.
_REPLACED: dict[str, Any] = {}


def register_defaults() -> None:
    """Put the defaults into Dask's configuration, below everything set by the user."""
    user = dask.config.get(NAMESPACE, {})
    if isinstance(user, Mapping):
        _REPLACED.update((key, value) for key, value in _flat(user) if key in _SECTIONS)
    elif user is not None:
        _REPLACED[""] = user
    dask.config.update_defaults(DEFAULTS)


def _option(key: str) -> Option:
    """Return the option with this key.

    Raises
    ------
    ValueError
        If there is none; the message lists those there are.
    """
    known = _BY_KEY.get(key)
    if known is not None:
        return known
    if key in ("", *_SECTIONS):
        path = ".".join(filter(None, (NAMESPACE, key)))
        inside = ", ".join(name for name in _BY_KEY if not key or name.startswith(key + "."))
        raise ValueError(f"{path} is a section, not an option; the options in it are: {inside}")
    # Options of the same section are not near for that alone.
    near = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.8)
    hint = f" Did you mean {NAMESPACE}.{near[0]}?" if near else ""
    raise ValueError(
        f"{NAMESPACE}.{key} is not an option.{hint} "
        f"The options of {NAMESPACE} are: {', '.join(_BY_KEY)}"
    )


def check(key: str, value: Any) -> None:
    """Check one option by itself, whatever the rest of the configuration is.

    Raises
    ------
    ValueError
        If there is no such option or its value is not accepted.
    """
    _option(_normal(key)).read(value)


def _normal(key: str) -> str:
    return key.removeprefix(NAMESPACE + ".").replace("_", "-")


def _default(attribute: str) -> Any:
    # The yaml is the only place of the defaults; __post_init__ converts their units.
    value = _DEFAULT_OF[attribute]
    return dataclasses.field(default=tuple(value) if isinstance(value, list) else value)


@dataclasses.dataclass(frozen=True)
class Settings:
    """All options, checked and in plain units.

    Every attribute accepts what the option of the same meaning accepts in the configuration
    (``restart_patience="1m"``) and holds the plain value afterwards (``60.0``). See
    ``docs/configuration.md`` for what each of them does.

    Attributes
    ----------
    enabled : bool
        Whether the plugin changes the scheduler at all.
    assignment, ordering, placement, withholding : str
        Names of the policies.
    retries : int
        How often an operand is tried again that failed by an error of the infrastructure.
    retry_errors : tuple of str
        Names of the exceptions that are such errors.
    adopt : str
        Which results are taken over when their worker's process dies: ``"off"``, ``"published"``
        for those that are in shared memory anyway, ``"all"``.
    restart_patience : float
        How long these wait for the next process of their worker, where no other is on its host,
        seconds.
    protects : bool
        Whether results that would take long to have again are copied.
    second_runs : bool
        Whether stragglers are run a second time.
    interrupt : bool
        Whether workers interrupt what they run and nobody wants any more.
    fusion : str
        Which tasks become one before they are scheduled: ``"off"``, ``"chains"`` or
        ``"subgraphs"``.
    quota_enabled : bool
        Whether workers start operands only where their memory suffices.
    quota_fraction : float
        Share of a worker's memory limit that may be taken.
    store_shared : bool
        Whether the workers of a host map each other's results.
    store_compression : str or None
        What results are compressed by as they are spilled; None to write them as they are.
    kernels_enabled : bool
        Whether workers evaluate chains of operations on arrays by fused kernels.
    kernels_exact : bool
        Whether only what is NumPy's result to the last bit is used.
    kernels_cache : str or None
        Where compiled kernels and measurements are kept; None for nowhere.
    api_enabled : bool
        Whether the scheduler's http server has the JSON API.
    observer_enabled : bool
        Whether the scheduler keeps account of operands, for dashboard, JSON API and reports.
    dashboard_pages : bool
        Whether the scheduler's dashboard has pages of ours.

    Raises
    ------
    ValueError
        If a value is not accepted; the message names the option and the accepted values.
    """

    enabled: bool = _default("enabled")
    assignment: str = _default("assignment")
    ordering: str = _default("ordering")
    placement: str = _default("placement")
    withholding: str = _default("withholding")
    retries: int = _default("retries")
    retry_errors: tuple[str, ...] = _default("retry_errors")
    adopt: str = _default("adopt")
    restart_patience: float = _default("restart_patience")
    protects: bool = _default("protects")
    second_runs: bool = _default("second_runs")
    interrupt: bool = _default("interrupt")
    fusion: str = _default("fusion")
    quota_enabled: bool = _default("quota_enabled")
    quota_fraction: float = _default("quota_fraction")
    store_shared: bool = _default("store_shared")
    store_compression: str | None = _default("store_compression")
    kernels_enabled: bool = _default("kernels_enabled")
    kernels_exact: bool = _default("kernels_exact")
    kernels_cache: str | None = _default("kernels_cache")
    api_enabled: bool = _default("api_enabled")
    observer_enabled: bool = _default("observer_enabled")
    dashboard_pages: bool = _default("dashboard_pages")

    @property
    def adopts(self) -> bool:
        """Whether results of workers that died are taken over, as far as they are shared."""
        return self.adopt != "off" and self.store_shared

    def __post_init__(self) -> None:
        for option in OPTIONS:
            value = option.read(getattr(self, option.attribute))
            object.__setattr__(self, option.attribute, value)

    @classmethod
    def from_config(cls, overrides: Mapping[str, Any] | None = None) -> Settings:
        """Read Dask's configuration of this process.

        Parameters
        ----------
        overrides : mapping, optional
            Values that win over the configuration, by key (``"quota.fraction"``, with or
            without ``marsched.`` before it).

        Raises
        ------
        ValueError
            If an option is unknown or its value not accepted.
        """
        config = dask.config.get(NAMESPACE, default={})
        if not isinstance(config, Mapping):
            config = {"": config}
        given = dict(_flat(config)) | _REPLACED
        for key, value in (overrides or {}).items():
            given[_normal(key)] = value
        return cls(**{_option(key).attribute: value for key, value in given.items()})

    def replace(self, **changes: Any) -> Settings:
        """Return a copy with the attributes in ``changes``.

        Raises
        ------
        ValueError
            If an attribute is unknown or its value not accepted.
        """
        unknown = sorted(changes.keys() - _DEFAULT_OF.keys())
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is not a setting; the settings are: {', '.join(_DEFAULT_OF)}"
            )
        return dataclasses.replace(self, **changes)


def changed_options(settings: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Yield (key, value, default) of the options that are not at their default, in plain units."""
    usual = Settings()
    for option in OPTIONS:
        now, before = getattr(settings, option.attribute), getattr(usual, option.attribute)
        if now != before:
            yield option.key, now, before
