import pytest

from dask_marsched.simulation.explain.results import Size
from dask_marsched.simulation.explain.worker_choice import Target


def size(workers, makespan, fits=True):
    return Size(workers, makespan, peak_per_worker=1, smallest_limit=1, fits=fits)


SIZES = [
    size(1, 100.0, fits=False),
    size(2, 50.0),
    size(4, 26.0),
    size(8, 20.0),
    size(16, 19.0),
]


@pytest.mark.parametrize(
    ("budget", "deadline", "workers"),
    [
        (None, None, 4),  # 26 s x 104 is the least of makespan x cost
        (None, 60, 2),
        (None, "25s", 8),
        (None, 5, None),
        (110, None, 4),
        ("1h", None, 16),
        (50, None, None),
    ],
)
def test_choice(budget, deadline, workers):
    choice = Target.parse(budget, deadline).choose(SIZES)
    assert choice.workers == workers
    assert choice.reason


def test_the_nearest_is_named_where_none_will_do():
    assert "16 workers is nearest with 19.00 s" in Target.parse(None, 5).choose(SIZES).reason
    assert "2 workers is nearest with 0.02778" in Target.parse(50, None).choose(SIZES).reason


def test_where_nothing_fits():
    choice = Target.parse(None, None).choose(SIZES[:1])
    assert choice.workers is None
    assert "fits with none" in choice.reason


def test_one_number_is_no_choice_but_may_keep_a_deadline():
    assert Target.parse(None, None).choose(SIZES[1:2]).workers is None
    assert Target.parse(None, 60).choose(SIZES[1:2]).workers == 2
