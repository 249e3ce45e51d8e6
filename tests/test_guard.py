"""Hooks: an exception leaves the decision to Dask, and a fatal one all that follow."""

from types import SimpleNamespace

from dask_marsched.fallbacks.guard import guarded


class Hooks:
    def __init__(self):
        self.failure = None
        self.counted = []
        self.counters = SimpleNamespace(
            caught=lambda hook, error: self.counted.append(hook), last_exception="division by zero"
        )

    @guarded(lambda: "Dask's")
    def chooses(self, n):
        return 1 / n

    @guarded(lambda: None, fatal=True)
    def withholds(self, n):
        return 1 / n

    @guarded(lambda: None, last=True)
    def ends(self):
        return "ended"


def test_an_exception_leaves_one_decision_to_dask():
    hooks = Hooks()
    assert hooks.chooses(0) == "Dask's"
    assert hooks.chooses(1) == 1
    assert hooks.counted == ["chooses"]


def test_after_a_fatal_one_only_the_end_is_left_to_us():
    hooks = Hooks()
    assert hooks.withholds(0) is None
    assert hooks.failure == "withholds failed: division by zero"
    assert hooks.chooses(1) == "Dask's"
    assert hooks.withholds(1) is None
    assert hooks.ends() == "ended"
    assert hooks.counted == ["withholds"]
