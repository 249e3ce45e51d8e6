"""Reads from a graph, before it runs, its groups of tasks, their chunks and dependencies."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import toolz  # type: ignore[import-untyped]  # it has no types
from dask.core import reverse_dict
from dask.utils import key_split

from dask_marsched.core.chunk_sizes import Grid
from dask_marsched.host.graph.array_layers import ArrayLayers, read_layers
from dask_marsched.host.twin.graph import check_keys
from dask_marsched.host.twin.scheduler import expression, materialize
from dask_marsched.host.twin.temporaries import temporaries
from dask_marsched.simulation.costs.cost_model import CostModel
from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.held_results import placeholders


class GraphFacts:
    """The graph of one computation, with the placeholders of results that are on the cluster."""

    def __init__(self, collections: list[Any], costs: Costs) -> None:
        expr, self.keys = expression(collections)
        tasks = materialize(expr, self.keys)[0]
        self.held = placeholders(tasks, self.keys, costs.held)
        check_keys(tasks, self.keys, self.held)
        self.tasks: Mapping[Any, Any] = {**self.held, **tasks} if self.held else tasks
        self._layers: ArrayLayers = read_layers(expr)
        #: Bytes of intermediate results inside tasks.
        self.temporaries = temporaries(self.tasks, self._layers)
        model = CostModel(expr, self.tasks, costs)
        self.sizes: dict[str, int] = dict(model.sizes)  #: Number of sizes by source.
        self._cost = model
        self.overhead = costs.overhead  #: As `ClusterSpec.overhead`, if nothing else is given.

    def nbytes(self, key: Any) -> int:
        """Return the bytes of a result."""
        return self._cost(key)[1]

    def seconds(self, key: Any) -> float:
        """Return the duration of a task."""
        return self._cost(key)[0]

    def footprint(self, key: Any) -> int:
        """Return the bytes of a task's inputs, output and intermediate results together."""
        inputs = sum(map(self.nbytes, self.tasks[key].dependencies))
        return inputs + self.nbytes(key) + self.temporaries.get(key, 0)

    @functools.cached_property
    def groups(self) -> dict[str, list[Any]]:
        """The keys of each group (``dask.utils.key_split``); a simulation may have more groups."""
        found: dict[str, list[Any]] = toolz.groupby(key_split, self.tasks)
        return found

    @functools.cached_property
    def dependents(self) -> dict[Any, set[Any]]:
        """The tasks that need the result of each task."""
        return reverse_dict({key: task.dependencies for key, task in self.tasks.items()})

    def grid(self, key: Any) -> Grid | None:
        """Return the chunk grid of the array that a result belongs to, if the graph tells."""
        grid = self._layers.grids.get(key[0]) if isinstance(key, tuple) and key else None
        return grid if grid is not None and grid.shape(key) is not None else None

    def shape_made_by(self, prefix: str, blocks: int) -> tuple[int, ...] | None:
        """Return the shape of the first chunk of the only array with this prefix, else None."""
        found = [
            grid.lengths
            for name, grid in self._layers.grids.items()
            if name.startswith(prefix) and math.prod(map(len, grid.lengths)) == blocks
        ]
        return tuple(axis[0] for axis in found[0]) if len(found) == 1 else None

    def chunk(self, group: str) -> tuple[tuple[int, ...] | None, str | None]:
        """Return shape and dtype of a group's largest chunk, if the graph tells."""
        keys = self.groups.get(group, [])
        grids = {key: grid for key in keys if (grid := self.grid(key)) is not None}
        if not grids:
            return None, None
        key = max(grids, key=lambda key: grids[key].nbytes(key) or 0)
        return grids[key].shape(key), self._dtype(key[0], grids[key])

    def _dtype(self, layer: str, grid: Grid) -> str | None:
        kind = self._layers.kinds.get(layer)
        try:
            return None if kind is None else np.dtype(f"{kind}{grid.itemsize}").name
        except TypeError:  # several arrays in a chunk, or texts
            return None
