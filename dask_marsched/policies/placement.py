"""Chooses the worker for an operand whose inputs are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may run an operand.

    Parameters
    ----------
    address
        Its address.
    input_bytes
        Bytes of the operand's inputs that it holds. For `choose`, inputs that each worker needs
        often count in part, or not at all.
    processing
        Operands sent to it and not finished, for each thread.
    stored
        Bytes of results that it holds, as a share of its memory limit; bytes without a limit.
    backlog
        Seconds of work for each thread, by learned durations.
    met_bytes
        Bytes on it that will be read together with the operand's result. Given for candidates with
        equal `input_bytes`, and for `PlacementPolicy.relief`.
    """

    address: str
    input_bytes: float
    processing: float
    stored: float
    backlog: float = 0.0
    met_bytes: float = 0.0


@runtime_checkable
class PlacementPolicy(Protocol):
    """Protocol of a placement policy."""

    #: Name for `status` and the configuration.
    name: ClassVar[str]

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """Return the index of the chosen candidate; there is at least one."""
        ...

    def relief(
        self, chosen: Candidate, others: Sequence[Candidate], bandwidth: float
    ) -> int | None:
        """Return the index of a less busy worker that replaces the chosen one, or None.

        Called if the chosen one is busy and no more operands are withheld than there are threads,
        so that other workers would run out of work.

        Parameters
        ----------
        chosen
            The choice of `choose`. Its `input_bytes` are those of all inputs, as if it held them.
        others
            Workers that hold at least half of the chosen one's input bytes.
        bandwidth
            Bytes a second between workers, as measured by Dask.
        """
        ...

    def spare(self, chosen: Candidate, idle: Sequence[Candidate], bandwidth: float) -> int | None:
        """Return the index of an idle worker that replaces the chosen one, or None.

        Called in the same phase as `relief`, if there are idle workers.

        Parameters
        ----------
        chosen
            The worker chosen so far, after `relief`. Its `input_bytes` are those of all inputs, as
            if it held them.
        idle
            Workers with nothing to do.
        bandwidth
            Bytes a second between workers, as measured by Dask.
        """
        ...


#: Factor on the transfer time if an idle worker fetches the inputs, because the operands that
#: follow have to move as well. With 1 a stencil, with 4 a running sum moves chunks to and fro.
_WORTH_FETCHING = 20.0
#: The same for a worker that holds much of the inputs, where the operands that follow can run.
#: Without it 7 of 16 workers idle at the end of a simulated matrix product; 1 to 4 avoid that.
_WORTH_LEAVING = 2.0


class MostBytes:
    """The worker that holds most of the operand's input bytes (Mars' rule).

    Ties are broken by the bytes that the result will be read together with, then by the fewest
    operands in progress for each thread, the lowest memory use, and the time of joining. Without
    the second criterion, one worker pulled over all chunks of a running sum in half of the runs.
    """

    name: ClassVar[str] = "most-bytes"

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """Return the candidate with most input bytes (`PlacementPolicy.choose`)."""
        if len(candidates) == 1:
            return 0
        return min(range(len(candidates)), key=lambda i: _rank(candidates[i]))

    def relief(
        self, chosen: Candidate, others: Sequence[Candidate], bandwidth: float
    ) -> int | None:
        """Return another worker that would start the operand earlier (`PlacementPolicy.relief`)."""
        return _earliest(chosen, others, _WORTH_LEAVING / bandwidth)

    def spare(self, chosen: Candidate, idle: Sequence[Candidate], bandwidth: float) -> int | None:
        """Return an idle worker that would start the operand much earlier."""
        return _earliest(chosen, idle, _WORTH_FETCHING / bandwidth)


def _earliest(chosen: Candidate, others: Sequence[Candidate], seconds_a_byte: float) -> int | None:
    """Return the candidate where an operand starts first, None for the chosen one."""
    best: int | None = None
    earliest = chosen.backlog
    held = chosen.input_bytes + chosen.met_bytes
    for i, candidate in enumerate(others):
        missing = max(0.0, held - candidate.input_bytes - candidate.met_bytes)
        start = candidate.backlog + seconds_a_byte * missing
        if start < earliest:
            best, earliest = i, start
    return best


def _rank(candidate: Candidate) -> tuple[float, float, float, float]:
    return (
        -candidate.input_bytes,
        -candidate.met_bytes,
        candidate.processing,
        candidate.stored,
    )
