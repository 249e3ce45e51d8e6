"""Decides scheduling by pure functions and objects, chosen by name or supplied by users."""

from dask_marsched.policies import assignment, ordering, placement, withholding

__all__ = ["assignment", "ordering", "placement", "withholding"]
