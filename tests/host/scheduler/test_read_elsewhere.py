"""Expecting that another worker of the same machine reads a result."""

from __future__ import annotations

from dataclasses import dataclass, field

from dask_marsched.host.scheduler.snapshot import read_elsewhere


@dataclass(frozen=True)
class Place:
    address: str
    host: str = "here"


A, B, FAR = Place("a"), Place("b"), Place("c", "elsewhere")


@dataclass
class Result:
    size: float
    processing_on: Place | None = None
    who_has: tuple[Place, ...] = ()
    planned: str | None = None
    dependents: list[Result] = field(default_factory=list, repr=False)
    dependencies: list[Result] = field(default_factory=list, repr=False)


def read_together(own, *others):
    """Return whether a task that reads all of them is expected on another worker than the first."""
    reader = Result(0, dependencies=[own, *others])
    own.dependents.append(reader)
    return read_elsewhere(own, lambda ts: ts.size, lambda ts: ts.planned)


def test_the_reader_runs_where_most_bytes_are():
    assert read_together(Result(1, A), Result(2, who_has=(B,)))
    assert not read_together(Result(2, A), Result(1, who_has=(B,)))
    assert not read_together(Result(1, A), Result(1, who_has=(B,)))


def test_planned_bytes_count_too():
    assert read_together(Result(1, A), Result(2, B))
    assert read_together(Result(1, A), Result(2, planned="b"))
    assert read_together(Result(1, A), Result(1, B), Result(1, planned="b"))
    assert not read_together(Result(1, A), Result(2, planned="a"))


def test_every_replica_counts():
    assert not read_together(Result(1, A), Result(2, who_has=(A, B)))


def test_without_other_inputs_or_plan_nothing_is_expected():
    assert not read_together(Result(1, A), Result(2))
    assert not read_together(Result(1, A))
    assert not read_together(Result(1), Result(2, B))
    assert not read_elsewhere(Result(1, A), lambda ts: ts.size, lambda ts: None)


def test_workers_of_other_machines_do_not_count():
    assert not read_together(Result(1, A), Result(2, who_has=(FAR,)))


def test_results_with_many_readers_are_not_examined():
    own = Result(1, A)
    own.dependents += [Result(0, dependencies=[own, Result(2, B)]) for _ in range(100)]
    assert not read_elsewhere(own, lambda ts: ts.size, lambda ts: None)
