"""Reads the peer-to-peer shuffles of a graph, and calls the scheduler's shuffle plugin."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from dask._task_spec import Alias, GraphNode, TaskRef
from dask.typing import Key
from distributed.scheduler import Scheduler
from distributed.shuffle._core import P2PBarrierTask
from distributed.shuffle._rechunk import ArrayRechunkSpec, rechunk_transfer, split_axes
from distributed.shuffle._shuffle import DataFrameShuffleSpec

from dask_marsched.host.graph.array_layers import read_layers
from dask_marsched.host.graph.shuffle_tasks import calls, output_partitions

#: A piece of a partition: the output partition that it belongs to, and its share of the bytes.
Piece = tuple[Any, float]


class Shuffle:
    """One shuffle of a graph, such as a rechunking of an array, from the spec of its barrier.

    ``on_disk`` is whether the pieces wait for the output tasks on disk, or in memory; ``even``
    whether they are taken to be of equal size, since their values decide.
    """

    def __init__(self, spec: Any) -> None:
        self.id: str = spec.id
        self.on_disk: bool = spec.disk
        self.even = not isinstance(spec, ArrayRechunkSpec)
        self._spec = spec
        if not self.even:
            self._axes = split_axes(spec.old, spec.new)

    def pieces(self, partition: Any) -> Iterator[Piece]:
        """Yield the pieces into which an input partition is cut."""
        spec = self._spec
        if self.even:
            for output in spec.output_partitions:
                yield output, 1.0 / spec.npartitions
            return
        size = prod(chunks[index] for chunks, index in zip(spec.old, partition, strict=True))
        cuts = (axis[index] for axis, index in zip(self._axes, partition, strict=True))
        for cut in itertools.product(*cuts):
            elements = prod(split.slice.stop - split.slice.start for split in cut)
            yield tuple(split.chunk_index for split in cut), elements / size


@dataclasses.dataclass(frozen=True)
class ShuffleTasks:
    """The tasks of a graph that shuffle."""

    transfers: dict[Key, tuple[Shuffle, Any]]  #: Shuffle and input partition.
    #: Bytes of the input partition of a transfer, if it is computed in the same task.
    nbytes: dict[Key, int]
    barriers: dict[Key, Shuffle]
    #: Shuffles of the output partitions that a task takes, and these partitions.
    outputs: dict[Key, tuple[tuple[Shuffle, Any], ...]]
    #: Parts of shuffles that were not understood and run as ordinary tasks.
    unknown: tuple[str, ...]


def read_shuffles(expr: Any, dsk: Mapping[Key, GraphNode]) -> ShuffleTasks:
    """Return the peer-to-peer shuffles in the tasks of an expression."""
    found = ShuffleTasks({}, {}, {}, {}, ())
    unknown: dict[str, None] = {}
    for key, node in dsk.items():
        if not isinstance(node, P2PBarrierTask):
            continue
        spec = node.spec
        if not isinstance(spec, ArrayRechunkSpec | DataFrameShuffleSpec):
            unknown[f"P2P shuffle of the kind {type(spec).__name__}"] = None
            continue
        found.barriers[key] = shuffle = Shuffle(spec)
        for transfer in node.dependencies:
            while isinstance(alias := dsk[transfer], Alias):  # to what it was fused into
                transfer = alias.target
            partition = None if shuffle.even else _input_partition(dsk[transfer])
            if shuffle.even or partition is not None:
                found.transfers[transfer] = (shuffle, partition)
            else:
                unknown[f"P2P transfer {transfer!r}"] = None
    if found.barriers:
        _read_outputs(dsk, found, unknown)
        _read_sizes(expr, dsk, found)
    return dataclasses.replace(found, unknown=tuple(unknown))


def _read_outputs(
    dsk: Mapping[Key, GraphNode], found: ShuffleTasks, unknown: dict[str, None]
) -> None:
    by_id = {shuffle.id: shuffle for shuffle in found.barriers.values()}
    barriers = found.barriers.keys()
    for key, node in dsk.items():
        if barriers.isdisjoint(node.dependencies):
            continue
        parts = tuple((by_id[id_], part) for id_, part in output_partitions(node) if id_ in by_id)
        if parts:
            found.outputs[key] = parts
        else:
            unknown[f"P2P output {key!r}"] = None


def _read_sizes(expr: Any, dsk: Mapping[Key, GraphNode], found: ShuffleTasks) -> None:
    grids = read_layers(expr).grids
    for key in found.transfers:
        for call in calls(dsk[key]):
            source: Any = call.args[0] if call.func is rechunk_transfer else None
            if isinstance(source, TaskRef) and isinstance(source.key, tuple):
                grid = grids.get(str(source.key[0]))
                nbytes = None if grid is None else grid.nbytes(source.key)
                if nbytes is not None:
                    found.nbytes[key] = nbytes


def _input_partition(node: GraphNode) -> Any:
    for call in calls(node):
        if call.func is rechunk_transfer:
            return call.args[2]
    return None


class SchedulerShuffles:
    """Sends the requests of workers to the scheduler's real shuffle plugin."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._plugin: Any = scheduler.plugins["shuffle"]

    def run(self, shuffle: str, key: Key, worker: str) -> tuple[int, dict[Any, str]] | None:
        """Return a run's number and each output partition's owner; the first call starts the run.

        None if the task is not to run any more.
        """
        answer = self._plugin.get_or_create(shuffle, key, worker)
        if answer["status"] != "OK":
            return None
        spec = answer["run_spec"].data
        return spec.run_id, spec.worker_for

    def restrict(self, shuffle: str, run: int, key: Key, worker: str) -> None:
        """Restrict an output task to the owner of its partition, unless the run failed."""
        if shuffle in self._plugin.active_shuffles:
            self._plugin.restrict_task(shuffle, run, key, worker)

    async def restart(self, shuffle: str, run: int) -> None:
        """Restart a shuffle whose barrier has inputs of different runs."""
        if shuffle in self._plugin.active_shuffles:
            await self._plugin.barrier(shuffle, run, consistent=False)
