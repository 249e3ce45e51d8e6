"""Chooses between NumPy and a backend for one expression, by timing both on real chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: NumPy's name among the candidates.
REFERENCE = "numpy"
SAMPLES = 3  #: Chunks that each candidate is timed on
HOPELESS = 1.5  #: A backend this many times slower than NumPy on its first chunk gets no second one
CLEARLY = 0.98  #: NumPy is kept where the backend takes more than this share of its time


@dataclass
class Times:
    """Measurements of one candidate."""

    samples: int = 0  #: chunks that it was timed on
    best: float = float("inf")  #: seconds per element, on the fastest of them
    runs: int = 0  #: chunks that it has evaluated
    repeated: int = 0  #: how many of them NumPy evaluated again for its warnings

    def take(self, seconds: float, repeated: bool) -> None:
        """Add the seconds per element of one more chunk."""
        self.samples += 1
        self.best = min(self.best, seconds)
        self.runs += 1
        self.repeated += repeated


@dataclass
class Trial:
    """Measurements of NumPy and of backends for one expression on one kind of arrays."""

    times: dict[str, Times] = field(default_factory=dict)

    def _of(self, name: str) -> Times:
        return self.times.get(name, Times())

    def cost(self, name: str) -> float:
        """Return a candidate's seconds per element, including NumPy's repetitions."""
        found, reference = self._of(name), self._of(REFERENCE)
        if not found.repeated:
            return found.best
        again = reference.best if reference.samples else found.best
        return found.best + again * found.repeated / found.runs

    def faster(self, backend: str | None) -> str:
        """Return the faster candidate: NumPy, unless the backend is clearly faster."""
        if backend is None or not self.cost(backend) < CLEARLY * self.cost(REFERENCE):
            return REFERENCE
        return backend

    def worth_a_try(self, backend: str) -> bool:
        """Whether a backend may turn out, or is known, to be faster than NumPy."""
        samples = self._of(backend).samples
        if samples >= SAMPLES:
            return self.faster(backend) == backend
        return not samples or self.cost(backend) <= HOPELESS * self.cost(REFERENCE)

    def untried(self, backend: str | None) -> str | None:
        """Return the candidate to be timed next; None if enough is known of both."""
        names = (REFERENCE,) if backend is None else (backend, REFERENCE)
        best = min(map(self.cost, names))
        wanting = [
            name
            for name in names
            if self._of(name).samples < SAMPLES and (name == REFERENCE or self.worth_a_try(name))
        ]

        def last(name: str) -> tuple[bool, bool, int]:
            # a program of few chunks should not spend them on the slower candidate
            samples = self._of(name).samples
            return samples > 0, self.cost(name) > best, samples

        return min(wanting, key=last, default=None)

    def choose(self, backend: str | None) -> str:
        """Return the candidate for the next chunk; ``backend`` is None until it is prepared."""
        return self.untried(backend) or self.faster(backend)

    def settled(self, backend: str | None) -> bool:
        """Whether nothing has to be timed any more."""
        return self.untried(backend) is None

    def merge(self, other: Trial) -> None:
        """Take over the measurements of another process where it has more."""
        for name, found in other.times.items():
            own = self.times.setdefault(name, found)
            if own is not found and found.samples > own.samples:
                own.samples, own.best = found.samples, min(own.best, found.best)

    def to_json(self) -> dict[str, Any]:
        """Return the measurements for other processes."""
        return {
            name: [t.best, t.samples, t.repeated / t.runs]
            for name, t in self.times.items()
            if t.samples
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Trial:
        """Return the trial of another process.

        Raises ValueError, TypeError or AttributeError if the data is not one.
        """
        trial = cls()
        for name, (best, samples, share) in found.items():
            if not (0 < best < 1 and samples >= 1 and 0 <= share <= 1):
                raise ValueError("no measurements")
            # measurements of others weigh at most as much as a few chunks seen here
            samples = min(SAMPLES, int(samples))
            trial.times[name] = Times(samples, best, samples, round(share * samples))
        return trial
