"""Which kinds of operands run in a row."""

from dask_marsched.policies import tiny_tasks
from dask_marsched.policies.tiny_tasks import SHORT, SMALL, TinyKinds


def test_a_kind_is_known_once_it_has_run():
    kinds = TinyKinds()
    assert not kinds.is_tiny("inc")
    kinds.observe("inc", 1e-5, 28)
    assert kinds.is_tiny("inc")
    assert not kinds.is_tiny("dec")


def test_slow_or_large_kinds_are_not_tiny():
    kinds = TinyKinds()
    kinds.observe("slow", SHORT, 28)
    kinds.observe("large", 1e-5, SMALL + 1)
    assert not kinds.is_tiny("slow")
    assert not kinds.is_tiny("large")


def test_a_slow_one_makes_its_kind_ordinary_for_a_while():
    kinds = TinyKinds()
    kinds.observe("inc", 1e-5, 28)
    kinds.observe("inc", 0.3, 28)
    rest = 0
    while not kinds.is_tiny("inc"):
        kinds.observe("inc", 1e-5, 28)
        rest += 1
    assert 10 < rest < 30


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(tiny_tasks, "_MOST_KINDS", 3)
    kinds = TinyKinds()
    for name in "abcd":
        kinds.observe(name, 0, 0)
    assert kinds.is_tiny("d")
    assert not kinds.is_tiny("a")
