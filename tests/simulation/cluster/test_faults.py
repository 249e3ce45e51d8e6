"""Faults as a user writes them."""

import pytest

from dask_marsched.simulation.cluster.faults import Fault, read_fault, read_faults


def test_tuples_texts_and_objects_mean_the_same_and_are_ordered_by_time():
    objects = [
        Fault(0.3, "kill", 1), Fault(0.1, "join", 4), Fault(0.2, "pause", 2, 1.5),
        Fault(0.5, "slow", 0, 4), Fault(0, "slow-link", 3, 2), Fault(0.6, "kill", -1, 2.0),
    ]  # fmt: skip
    tuples = [
        (0.3, "kill", 1), (0.1, "join", 4), (0.2, "pause", 2, 1.5), (0.5, "slow", 0, 4),
        (0, "slow-link", 3, 2), (0.6, "kill", "scheduler", 2.0),
    ]  # fmt: skip
    texts = [
        "kill:1@300ms", "join:4@0.1", "pause:2@200ms:1.5", "slow:0@0.5s:4", "slow-link:3@0:2",
        "kill:scheduler@600ms:2s",
    ]  # fmt: skip
    assert read_faults(objects) == read_faults(tuples) == read_faults(texts)
    assert [fault.at for fault in read_faults(tuples)] == [0, 0.1, 0.2, 0.3, 0.5, 0.6]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:3@10s", Fault(10.0, "kill", 3)),
        ("kill:scheduler@10s", Fault(10.0, "kill", -1, 3.0)),
        ("kill:scheduler@10s:2s", Fault(10.0, "kill", -1, 2.0)),
        ("join:4@250ms", Fault(0.25, "join", 4)),
        ("pause:0@1.5:5s", Fault(1.5, "pause", 0, 5.0)),
        ("slow:2@0s:4", Fault(0.0, "slow", 2, 4.0)),
        ("slow-link:12@1h:0.5", Fault(3600.0, "slow-link", 12, 0.5)),
    ],
)
def test_texts_are_read(text, fault):
    assert read_fault(text) == fault


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((0.1, "explode", 0), r"wrong fault \(0.1, 'explode', 0\); accepted are \(seconds"),
        ((0.1, "pause", 0), r"wrong fault \(0.1, 'pause', 0\); accepted"),
        ((0.1, "kill", 0, 3), "wrong fault"),
        ((0.1, "kill"), "wrong fault"),
        ((0.1, "kill", "scheduler", 0), "seconds must be more than 0, not 0"),
        ((0.1, "kill", "scheduler", 1, 2), "wrong fault"),
        ((0.1, "join", "scheduler"), "the worker must be a number of 0 or more"),
        ("kill:3", "wrong fault"),
        (7, "wrong fault 7"),
        ((0.1, "kill", "w3"), "the worker must be a number of 0 or more"),
        ((0.1, "kill", -1), "the worker must be a number of 0 or more"),
        ((-0.1, "kill", 1), "at must be 0 or more, not -0.1"),
        ((float("nan"), "kill", 1), "at must be 0 or more"),
        ((1, "slow", 1, 0), "factor must be more than 0, not 0"),
        ((1, "pause", 1, -2), "seconds must be more than 0, not -2"),
    ],
)
def test_a_wrong_fault_is_one_clear_error(fault, message):
    with pytest.raises(ValueError, match=message):
        read_faults([fault])
