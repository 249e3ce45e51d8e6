"""Which backend evaluates an expression: each is timed on real chunks, the fastest is kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: The reference is always among the candidates.
REFERENCE = "numpy"
#: Chunks that each candidate is timed on.
SAMPLES = 3
#: A candidate that takes so much longer than the best on its first chunk gets no second one;
#: the reference always does, as all others are measured against it.
HOPELESS = 1.5
#: The reference stays where the best candidate takes more than this share of its time.
CLEARLY = 0.98


@dataclass
class Times:
    """What is known of a backend.

    Attributes
    ----------
    samples
        How many chunks it was timed on.
    best
        Seconds for an element, on the best of them.
    runs, repeated
        Chunks that it has evaluated, and those of them that had to be evaluated by NumPy again,
        for its warnings.
    """

    samples: int = 0
    best: float = float("inf")
    runs: int = 0
    repeated: int = 0

    def take(self, seconds: float, repeated: bool) -> None:
        """Take in the time for an element on one more chunk."""
        self.samples += 1
        self.best = min(self.best, seconds)
        self.runs += 1
        self.repeated += repeated


@dataclass
class Trial:
    """The candidates for one expression on one kind of arrays.

    Attributes
    ----------
    times
        By backend.
    given_up
        Backends that failed, with the reason.
    """

    times: dict[str, Times] = field(default_factory=dict)
    given_up: dict[str, str] = field(default_factory=dict)

    def cost(self, name: str) -> float:
        """Return the seconds that a backend takes for an element, repetitions included."""
        found = self.times.get(name)
        if found is None or not found.samples:
            return float("inf")
        share = found.repeated / found.runs if found.runs else 0.0
        reference = self.times.get(REFERENCE)
        again = reference.best if reference is not None and reference.samples else found.best
        return found.best + (share * again if share else 0.0)

    def fastest(self, names: Iterable[str]) -> str:
        """Return the fastest of some backends; the reference unless one is clearly faster."""
        costs = {name: self.cost(name) for name in names if name not in self.given_up}
        best = min(costs, key=lambda name: costs[name], default=REFERENCE)
        return best if costs.get(best, 0) < CLEARLY * self.cost(REFERENCE) else REFERENCE

    def untried(self, ready: Collection[str]) -> str | None:
        """Return the backend to be timed next, None if enough is known of all."""
        costs = {name: self.cost(name) for name in (*ready, REFERENCE)}
        best = min(costs.values())
        wanting = [
            name
            for name in costs
            if name not in self.given_up
            and (found := self.times.get(name, Times())).samples < SAMPLES
            and not (name != REFERENCE and found.samples and costs[name] > HOPELESS * best)
        ]

        def last(name: str) -> tuple[bool, bool, int]:
            # A program of few chunks should not spend them on what seems to be slower.
            samples = self.times.get(name, Times()).samples
            return samples > 0, costs[name] > best, samples

        return min(wanting, key=last, default=None)

    def worth_a_try(self, names: Iterable[str]) -> list[str]:
        """Return those of some backends that may turn out, or are known, to be the fastest."""
        known = [name for name, found in self.times.items() if found.samples]
        best = self.fastest(known)
        least = self.cost(best)
        found = []
        for name in names:
            samples = self.times[name].samples if name in known else 0
            hopeless = samples and self.cost(name) > HOPELESS * least
            if name == best or not (samples >= SAMPLES or hopeless):
                found.append(name)
        return found

    def choose(self, ready: Collection[str]) -> str:
        """Return the backend for the next chunk, of those that are ready and the reference."""
        return self.untried(ready) or self.fastest([*ready, REFERENCE])

    def merge(self, other: Trial) -> None:
        """Take in what another process knows."""
        for name, found in other.times.items():
            own = self.times.setdefault(name, found)
            if own is not found and found.samples > own.samples:
                own.samples, own.best = found.samples, min(own.best, found.best)

    def settled(self, ready: Collection[str]) -> bool:
        """Whether no more has to be timed."""
        return self.untried(ready) is None

    def to_json(self) -> dict[str, Any]:
        """Return what another process can go on with."""
        return {
            "best": {name: t.best for name, t in self.times.items() if t.samples},
            "repeated": {name: t.repeated / t.runs for name, t in self.times.items() if t.runs},
            "samples": {name: t.samples for name, t in self.times.items() if t.samples},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Trial:
        """Return a trial that another process has made.

        Raises
        ------
        ValueError, TypeError, KeyError, AttributeError
            If it is none.
        """
        trial = cls()
        for name, best in found["best"].items():
            if not isinstance(name, str) or not 0 < float(best) < 1:
                raise ValueError("no time")
            share = float(found["repeated"].get(name, 0))
            if not 0 <= share <= 1:
                raise ValueError("no share")
            # what was seen elsewhere weighs at most as much as a few chunks seen here
            samples = min(SAMPLES, int(found["samples"][name]))
            if samples < 1:
                raise ValueError("no samples")
            trial.times[name] = Times(samples, float(best), samples, round(share * samples))
        return trial
