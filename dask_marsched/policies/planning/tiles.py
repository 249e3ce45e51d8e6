"""Cuts layers of products into tiles: boxes that read only the blocks along their edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_marsched.core.graph import OperandGraph
from dask_marsched.core.plan import Unit, WorkerSlot
from dask_marsched.policies.planning.forecast import Forecaster
from dask_marsched.policies.planning.plan_search import cost

Ints = NDArray[np.int64]

_LEAST_EXTENT = 3  #: Shorter axes do not make products.
_TILES = 2  #: Most tiles for each worker.
_MOST_OF_IT = 2 / 3  #: Least part of a layer that are products.
_COMPARED = 50  #: Most partitions compared for a layer.


class _Layer(NamedTuple):
    """Operands whose keys form a full grid: their numbers, and their place along each axis."""

    members: list[int]
    places: Ints
    extents: tuple[int, ...]


class _Inputs(NamedTuple):
    """Inputs of operands: `core.graph.Edges` as arrays."""

    starts: Ints
    flat: Ints

    def of(self, operands: Sequence[int]) -> tuple[Ints, Ints]:
        """Return readers, as positions in `operands`, and inputs of the edges of some operands."""
        first = self.starts[np.asarray(operands, dtype=np.int64)]
        counts = self.starts[np.asarray(operands, dtype=np.int64) + 1] - first
        before = np.cumsum(counts) - counts
        at = np.repeat(first - before, counts) + np.arange(counts.sum())
        return np.repeat(np.arange(len(first)), counts), self.flat[at]


class _Reads(NamedTuple):
    """Edges from readers to inputs, both counted from 0, with the bytes of each input."""

    reader: Ints
    read: Ints
    nbytes: NDArray[np.float64]
    readers: int


def find_tiles(graph: OperandGraph, workers: int) -> list[tuple[int, ...]]:
    """Return disjoint tiles of all layers of products, one or two for each worker and layer.

    A product reads at least two operands that are each read along a whole axis of its layer, not
    all the same axis, and that are half of its input bytes. Operands of a layer have the same name
    in their keys (`dask.array`). Layers with fewer than two operands for each worker are not cut.
    The numbers in a tile are ascending.
    """
    found: list[tuple[int, ...]] = []
    if workers < 2:
        return found
    starts, flat = (np.asarray(a, dtype=np.int64) for a in (graph.inputs.starts, graph.inputs.flat))
    inputs = _Inputs(starts, flat)
    n_inputs = np.diff(starts)
    # Without the operands that may be products no layer needs to be looked at.
    often = np.diff(np.asarray(graph.dependents.starts, dtype=np.int64)) >= _LEAST_EXTENT
    owners = np.repeat(np.arange(len(graph)), n_inputs)
    if np.count_nonzero(np.bincount(owners[often[flat]]) >= 2) < _MOST_OF_IT * 2 * workers:
        return found
    for layer in _layers(graph, n_inputs.tolist(), 2 * workers):
        reader, read = inputs.of(layer.members)
        different, place = np.unique(read, return_inverse=True)
        nbytes = np.array([graph.nbytes[j] for j in different.tolist()], dtype=float)
        reads = _Reads(reader, place, nbytes, len(layer.members))
        if _is_of_products(layer, reads):
            found.extend(_cut(graph, inputs, layer, reads, workers))
    return found


def _layers(graph: OperandGraph, n_inputs: Sequence[int], least: int) -> Iterator[_Layer]:
    """Yield the layers of at least `least` operands that are full grids of two axes or more."""
    by_name: dict[tuple[Hashable, int], list[int]] = {}
    for i, key in enumerate(graph.keys):
        if n_inputs[i] and isinstance(key, tuple) and len(key) > 2:
            by_name.setdefault((key[0], len(key)), []).append(i)
    keys: Any = graph.keys
    for members in by_name.values():
        if len(members) < least or max([n_inputs[i] for i in members]) < 2:
            continue
        rows = [keys[i][1:] for i in members]
        try:
            indices = np.array(rows)
        except ValueError:  # sequences of different lengths
            continue
        if indices.dtype.kind != "i" or indices.ndim != 2:
            continue
        ranked = [np.unique(axis, return_inverse=True)[1] for axis in indices.T]
        places = np.stack(ranked, axis=1).astype(np.int64)
        extents = tuple(int(e) for e in places.max(axis=0) + 1)
        if math.prod(extents) == len(members):
            yield _Layer(members, places, extents)


def _reads_between(
    graph: OperandGraph, inputs: _Inputs, readers: Sequence[int], read: Sequence[int]
) -> _Reads:
    """Return the edges from some operands to some others."""
    number = np.full(len(graph), -1)
    number[np.asarray(read, dtype=np.int64)] = np.arange(len(read))
    reader, wanted = inputs.of(readers)
    place = number[wanted]
    nbytes = np.array([graph.nbytes[j] for j in read], dtype=float)
    return _Reads(reader[place >= 0], place[place >= 0], nbytes, len(readers))


def _is_of_products(layer: _Layer, reads: _Reads) -> bool:
    """Whether most operands of a layer are products (`find_tiles`)."""
    times_read = np.bincount(reads.read, minlength=len(reads.nbytes))
    along_an_axis = np.zeros(len(times_read), dtype=bool)
    axes = np.zeros(reads.readers, dtype=int)
    for axis, extent in enumerate(layer.extents):
        if extent < _LEAST_EXTENT:
            continue
        maybe = np.flatnonzero(times_read >= extent)
        if not len(maybe):
            continue
        row = np.full(len(times_read), -1)
        row[maybe] = np.arange(len(maybe))
        of = row[reads.read] >= 0
        seen = np.zeros((len(maybe), extent), dtype=bool)
        seen[row[reads.read[of]], layer.places[reads.reader[of], axis]] = True
        along = np.zeros(len(times_read), dtype=bool)
        along[maybe] = seen.all(axis=1)
        along_an_axis |= along
        axes += np.bincount(reads.reader, along[reads.read], reads.readers) > 0
    along = along_an_axis[reads.read]
    count = np.bincount(reads.reader, along, reads.readers)
    each = reads.nbytes[reads.read]
    nbytes = np.bincount(reads.reader, each, reads.readers)
    along_nbytes = np.bincount(reads.reader, each * along, reads.readers)
    # Two axes: a mean and a deviation read by all chunks of a column make no product.
    product = (count >= 2) & (axes >= 2) & (2 * along_nbytes >= nbytes)
    return bool(product.mean() >= _MOST_OF_IT)


def _cut(
    graph: OperandGraph, inputs: _Inputs, layer: _Layer, reads: _Reads, workers: int
) -> list[tuple[int, ...]]:
    """Cut a layer where the fewest bytes move, weighted by load balance."""
    members = layer.members
    sums = _readers(graph, members)
    joined = _reads_between(graph, inputs, sums, members)
    joined_again = _reads_between(graph, inputs, _readers(graph, sums), sums)
    cheapest, tile_of = math.inf, None
    for parts in _partitions(layer.extents, workers):
        tile = _number(layer, parts)
        count = math.prod(parts)
        of_sum, parts_moved = _moved_to_joins(joined, tile)
        _, sums_moved = _moved_to_joins(joined_again, of_sum)
        moved = _copied(reads, tile, count) + parts_moved + sums_moved
        largest = np.bincount(tile, minlength=count).max() * math.ceil(count / workers)
        uneven = largest * workers / len(members)
        cost = moved * float(uneven) ** 2
        if cost < cheapest:
            cheapest, tile_of = cost, tile
    if tile_of is None:
        return []
    order = np.argsort(tile_of, kind="stable")
    ends = np.flatnonzero(np.diff(tile_of[order])) + 1
    return [tuple(sorted(members[n] for n in part.tolist())) for part in np.split(order, ends)]


def _readers(graph: OperandGraph, operands: Sequence[int]) -> list[int]:
    return sorted({d for i in operands for d in graph.dependents[i]})


def _partitions(extents: tuple[int, ...], workers: int) -> list[tuple[int, ...]]:
    """Return the numbers of parts to cut each axis into, the most even first."""

    def unevenness(parts: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
        largest = math.prod(math.ceil(e / p) for e, p in zip(extents, parts, strict=True))
        return largest * math.ceil(math.prod(parts) / workers), sum(parts), parts

    most = _TILES * workers
    found = (
        parts
        for parts in itertools.product(*(range(1, min(e, most) + 1) for e in extents))
        if workers <= math.prod(parts) <= most
    )
    return sorted(found, key=unevenness)[:_COMPARED]


def _number(layer: _Layer, parts: tuple[int, ...]) -> Ints:
    """Return the tile of each operand if the axes are cut into these parts."""
    tile = np.zeros(len(layer.members), dtype=np.int64)
    for axis, count in enumerate(parts):
        tile = tile * count + layer.places[:, axis] * count // layer.extents[axis]
    return tile


def _copied(reads: _Reads, tile: Ints, count: int) -> float:
    """Return the bytes that tiles read in sum."""
    wanted = np.zeros((len(reads.nbytes), count), dtype=bool)
    wanted[reads.read, tile[reads.reader]] = True
    return float(wanted.sum(axis=1) @ reads.nbytes)


def _moved_to_joins(joined: _Reads, tile: Ints) -> tuple[Ints, float]:
    """Return the tile of each join (that of its first input), and the bytes read from others."""
    of = np.zeros(joined.readers, dtype=np.int64)
    of[joined.reader[::-1]] = tile[joined.read[::-1]]
    elsewhere = joined.read[tile[joined.read] != of[joined.reader]]
    return of, float(joined.nbytes[elsewhere].sum())


_MOST_OPERANDS = 50_000  #: Operands of a graph that is tiled whole: a part is not representative.
#: Peaks of tiles relative to stock Dask that are safe, and allowed. Of twelve products on 16 to
#: 100 workers nine were forecast within 15 %, two too high, one too low (0.9 instead of 1.2).
_SAFE, _MOST_OF_STOCK = 0.9, 1.1
#: Allowed peak of tiles relative to the plan without, beyond the safe peak. Six products forecast
#: at 1.2 to 1.3 on 16 and 24 workers held 0.8 to 1.05 of it.
_MORE = 1.3
#: Correction of the plan without tiles: where blocks of one matrix meet, it held 1.1 to 1.7 times
#: its forecast in simulation on 16 to 40 workers, more on 100.
_FORECAST_LOW = 1.4


def with_tiles(graph: OperandGraph, units: list[Unit], workers: Sequence[WorkerSlot]) -> list[Unit]:
    """Return the plan with tiles if it costs less and holds hardly more bytes, else `units`."""
    if len(graph) > _MOST_OPERANDS:
        return units
    tiles = find_tiles(graph, len(workers))
    if not tiles:
        return units
    tiled = {i for tile in tiles for i in tile}
    rest = (tuple(i for i in unit.operands if i not in tiled) for unit in units)
    made = [Unit(operands) for operands in rest if operands]
    made += [Unit(tile, tile=True) for tile in tiles]
    made.sort(key=lambda unit: unit.operands[0])
    run = Forecaster(graph, [w.nthreads or 1 for w in workers])
    stock, before, after = run.stock(), run.plan(units), run.plan(made)
    if after.peak <= _SAFE * stock.peak:
        before = replace(before, peak=_FORECAST_LOW * before.peak)
    elif after.peak > max(before.peak, min(_MOST_OF_STOCK * stock.peak, _MORE * before.peak)):
        return units
    return made if cost(after, stock) < cost(before, stock) else units
