"""Records who registered the plugin, when, and which registration it replaced."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dask_marsched.config import NAMESPACE, OPTIONS, Settings
from dask_marsched.host.client.registering import clients_here
from dask_marsched.monitoring.status_text import registrant

logger = logging.getLogger("dask_marsched")


@dataclass(frozen=True)
class Origin:
    """The process that made a plugin, with the ids of its `clients`.

    `by` is ``"client"``, ``"preload"``, or ``"scheduler"`` for other code in the scheduler's
    process.
    """

    by: str
    user: str
    host: str
    pid: int
    clients: tuple[str, ...] = ()

    @classmethod
    def here(cls, by: str) -> Origin:
        """Return the origin of a plugin made in this process."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a container without a name for its user
            user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
        return cls(by, user, socket.gethostname(), os.getpid(), clients_here())


@dataclass(frozen=True)
class Registration:
    """A plugin in force since `time` (seconds since the epoch), and the one it replaced."""

    origin: Origin
    time: float
    settings: Settings
    policies: Mapping[str, str]
    replaced: Registration | None = None

    def __post_init__(self) -> None:
        """Drop the predecessor of the replaced registration."""
        if self.replaced is not None and self.replaced.replaced is not None:
            object.__setattr__(self, "replaced", replace(self.replaced, replaced=None))

    def report(self, connected: Mapping[str, Any]) -> dict[str, Any]:
        """Return this registration and the replaced one, as plain values for JSON."""
        before = self.replaced
        found: dict[str, Any] = {
            **vars(self.origin),
            "clients": [name for name in self.origin.clients if name in connected],
            "time": self.time,
            "replaced": None,
        }
        if before is not None:
            found["replaced"] = {**before.report(connected), "changed": self.changed()}
            del found["replaced"]["replaced"]
        return found

    def changed(self) -> dict[str, list[Any]]:
        """Return the options that differ from the replaced registration: old and new value."""
        if self.replaced is None:
            return {}
        before, now = vars(self.replaced.settings), vars(self.settings)
        pairs = {
            f"{NAMESPACE}.{option.key}": [before[option.attribute], now[option.attribute]]
            for option in OPTIONS
        }
        # A policy given as an object takes precedence over the setting.
        configured = {option.key for option in OPTIONS}
        for kind, name in self.policies.items():
            key = f"{kind}.policy"
            label = f"{NAMESPACE}.{key}" if key in configured else kind
            pairs[label] = [self.replaced.policies[kind], name]
        return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}

    def log_changes(self) -> None:
        """Log a warning if this replaces another configuration."""
        self._log(
            "%s has replaced the configuration of dask_marsched that %s had registered (%s)",
            self.changed(),
        )

    def log_refusal(self) -> None:
        """Log a warning if this asked for other options than those of a plugin that stays."""
        journal = f"{NAMESPACE}.journal."
        self._log(
            "The options of dask_marsched that %s has registered are not in force: the plugin that "
            "%s had registered keeps a journal and stays (%s). Name the journal to replace it.",
            {key: pair for key, pair in self.changed().items() if not key.startswith(journal)},
        )

    def _log(self, message: str, changed: dict[str, list[Any]]) -> None:
        if self.replaced is not None and changed:
            text = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items())
            logger.warning(
                message, registrant(self.report({})), registrant(self.replaced.report({})), text
            )


def is_same(one: Any, other: Any) -> bool:
    """Return whether two plugins behave the same; false for policies that users wrote."""
    return (
        type(one) is type(other)
        and one.settings == other.settings
        and all(
            _same_policy(policy, getattr(other.policies, kind))
            for kind, policy in vars(one.policies).items()
        )
    )


def _same_policy(one: Any, other: Any) -> bool:
    ours = type(one).__module__.startswith("dask_marsched.policies.")
    return ours and type(one) is type(other) and _parameters(one) == _parameters(other)


def _parameters(policy: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(policy).items() if not name.startswith("_")}
