"""Scheduling policies: pure decisions, chosen by name or given as objects."""

from dask_marsched.policies import assignment, ordering, placement, withholding

__all__ = ["assignment", "ordering", "placement", "withholding"]
