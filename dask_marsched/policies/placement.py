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
        workers that hold equally many input bytes, and where `relief` is asked for.
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
        """Return the index of a less busy worker to use in place of the chosen one, or None.

        Asked only where the chosen one is busy, in the last wave: once no more operands are
        withheld, which others could run instead, than there are threads.

        Parameters
        ----------
        chosen
            What `choose` decided for, as if it held all inputs: what it lacks may be on its way.
        others
            Workers that hold at least half of what the chosen one does.
        bandwidth
            Bytes a second between workers, as measured by Dask.
        """
        ...

    def spare(self, chosen: Candidate, idle: Sequence[Candidate], bandwidth: float) -> int | None:
        """Return the index of an idle worker to use in place of the chosen one, or None.

        Asked only in the last wave, as `relief`, and where workers are idle.

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
#: The same for a worker that has much of the inputs, too, so that what follows can go on there.
#: Blocks that are multiplied are at many workers, and those that have fetched most of them get most
#: of the products: without this seven of sixteen had nothing to do in the last of five seconds. In
#: simulation anything from 1 to 4 mends it, and 8 two thirds of it.
_WORTH_LEAVING = 2.0


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

    def relief(
        self, chosen: Candidate, others: Sequence[Candidate], bandwidth: float
    ) -> int | None:
        """Return the other one where the operand would start earlier (`PlacementPolicy.relief`)."""
        return _earliest(chosen, others, _WORTH_LEAVING / bandwidth)

    def spare(self, chosen: Candidate, idle: Sequence[Candidate], bandwidth: float) -> int | None:
        """Return the idle worker where the operand would start much earlier."""
        return _earliest(chosen, idle, _WORTH_FETCHING / bandwidth)


def _earliest(chosen: Candidate, others: Sequence[Candidate], seconds_a_byte: float) -> int | None:
    """Return which of the others would start an operand before the chosen one, None for none."""
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
