from __future__ import annotations

import pytest

from dask_marsched.policies import registry


def test_names() -> None:
    assert registry.names("assignment") == ("bfs", "dfs", "units")
    assert registry.names("ordering") == ("dask", "mars")


def test_unknown_policy_lists_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'unit'; accepted are 'bfs', 'dfs', 'un"):
        registry.create("assignment", "unit")


def test_unknown_kind_lists_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match="unknown kind of policy 'sort'; accepted are 'assignment"):
        registry.names("sort")


def test_a_policy_needs_a_name() -> None:
    with pytest.raises(TypeError, match="policy class Nameless needs a class attribute `name`"):

        @registry.register("ordering")
        class Nameless:
            pass
