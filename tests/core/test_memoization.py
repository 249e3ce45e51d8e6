"""Results that are remembered for graphs."""

from __future__ import annotations

import pytest

from dask_marsched.core import memoization
from dask_marsched.core.memoization import memoized


@pytest.fixture
def calls():
    return []


@pytest.fixture
def total(calls):
    @memoized
    def total(sizes, factor):
        calls.append(list(sizes))
        return factor * sum(sizes)

    return total


def test_equal_graphs_are_computed_once(total, calls):
    assert total([1, 2], 3) == total([1, 2], 3) == 9
    assert calls == [[1, 2]]


def test_each_argument_counts(total, calls):
    assert [total([1, 2], 3), total([2, 1], 3), total([1, 2], 4)] == [9, 9, 12]
    assert len(calls) == 3


def test_large_graphs_are_not_remembered(total, calls):
    large = [1] * 3000
    assert total(large, 1) == total(large, 1) == 3000
    assert len(calls) == 2


def test_only_the_last_graphs_are_remembered(total, calls):
    for size in (*range(100), 0):
        total([size], 1)
    assert len(calls) == 101


def test_all_graphs_can_be_forgotten(total, calls):
    total([1], 1)
    memoization.forget()
    total([1], 1)
    assert len(calls) == 2


def test_errors_are_not_remembered(calls):
    @memoized
    def first(sizes):
        calls.append(sizes)
        return sizes[0]

    for _ in range(2):
        with pytest.raises(IndexError):
            first([])
    assert len(calls) == 2
