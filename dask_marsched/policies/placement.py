"""Choice of the worker for an operand whose inputs are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from dask_marsched.policies.registry import register


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may run an operand.

    Parameters
    ----------
    address
        Address of the worker.
    input_bytes
        Bytes of the operand's inputs that the worker holds.
    processing
        Operands sent to the worker and not yet finished, per thread.
    stored
        Bytes of results that the worker holds, as a share of its memory limit; bytes where it
        has no limit.
    backlog
        Seconds of work a thread that the worker has been sent, by learned durations.
    met_bytes
        Bytes on the worker of what the operand's result will be read together with. Known of
        workers that hold equally many input bytes.
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

    def spare(self, chosen: Candidate, idle: Sequence[Candidate], bandwidth: float) -> int | None:
        """Return the index of an idle worker to use in place of the chosen one, or None.

        Asked only where workers are idle and nothing is withheld that they could run instead.

        Parameters
        ----------
        chosen
            What `choose` decided for.
        idle
            Workers with nothing to do.
        bandwidth
            Bytes a second between workers, as measured by Dask.
        """
        ...


#: How many times the transfer an operand must wait otherwise for an idle worker to be used. At 1
#: a stencil, at 4 a running sum moves whole chunks to and fro to gain a few milliseconds: what
#: follows the operand has to move as well.
_WORTH_FETCHING = 20.0


@register("placement")
class MostBytes:
    """The worker that holds most of the operand's input bytes (Mars' rule).

    Ties go to the worker that holds most of what the result will be read together with, then to
    the one with the fewest operands in progress a thread, then to the one that holds the
    smallest share of its memory, then to the one that joined first.

    Notes
    -----
    A running sum is why the next operands count: each step joins a chunk and what was summed up
    so far. At either's worker the step costs the same, but only at the chunk's is the next chunk
    at hand. Without it one worker, which held least, pulled all chunks over in half of the runs.
    """

    name: ClassVar[str] = "most-bytes"

    def choose(self, candidates: Sequence[Candidate]) -> int:
        """Return the candidate with most input bytes (`PlacementPolicy.choose`)."""
        best = 0
        if len(candidates) > 1:
            key = _rank(candidates[0])
            for i in range(1, len(candidates)):
                other = _rank(candidates[i])
                if other < key:
                    best, key = i, other
        return best

    def spare(self, chosen: Candidate, idle: Sequence[Candidate], bandwidth: float) -> int | None:
        """Return the idle worker where the operand would start much earlier."""
        best: int | None = None
        earliest = chosen.backlog
        for i, candidate in enumerate(idle):
            missing = max(0.0, chosen.input_bytes - candidate.input_bytes)
            start = candidate.backlog + _WORTH_FETCHING * missing / bandwidth
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
