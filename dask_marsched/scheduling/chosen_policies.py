"""Looks up the policies in force: `Policies`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask_marsched.config import Settings
from dask_marsched.policies import registry
from dask_marsched.policies.assignment import AssignmentPolicy
from dask_marsched.policies.ordering import OrderingPolicy
from dask_marsched.policies.placement import MostBytes, PlacementPolicy
from dask_marsched.policies.unit_queues import UnitQueues
from dask_marsched.policies.withholding import WithholdingPolicy


@dataclass(frozen=True)
class Policies:
    """The policies in force."""

    assignment: AssignmentPolicy
    ordering: OrderingPolicy
    placement: PlacementPolicy
    withholding: WithholdingPolicy

    @classmethod
    def of(cls, settings: Settings, **given: Any) -> Policies:
        """Return the policies given by kind as an object, a registered name, or None for neither.

        Raises ValueError for an unknown name, TypeError for an object without the methods.
        """
        return cls(
            _policy("assignment", AssignmentPolicy, given, settings.assignment),
            _policy("ordering", OrderingPolicy, given, settings.ordering),
            _policy("placement", PlacementPolicy, given, MostBytes.name),
            _policy("withholding", WithholdingPolicy, given, UnitQueues.name),
        )

    def names(self) -> dict[str, str]:
        """Return the policies' names by kind."""
        return {kind: policy.name for kind, policy in vars(self).items()}


def _policy(kind: str, protocol: type, given: dict[str, Any], default: str) -> Any:
    policy = default if given[kind] is None else given[kind]
    if isinstance(policy, str):
        return registry.create(kind, policy)
    if isinstance(policy, protocol):
        return policy
    raise TypeError(
        f"{kind} must be the name of a registered policy "
        f"({', '.join(map(repr, registry.names(kind)))}) or an object with the methods of "
        f"{protocol.__module__}.{protocol.__qualname__}, not {policy!r}"
    )
