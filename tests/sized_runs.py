"""Computations whose sizes are known beforehand, and a way to measure them for real."""

import json
import pickle
from dataclasses import dataclass, field
from typing import Any

import dask
import numpy as np
from dask._expr import FinalizeCompute
from dask._task_spec import convert_legacy_graph
from dask.base import collections_to_expr
from dask.order import order
from dask.sizeof import sizeof
from distributed.protocol.pickle import dumps

if __name__ == "__main__":  # before dask.array is imported
    dask.config.set({"array.query-planning": True})

import dask.array as da

from dask_marsched.host.graph.result_sizes import chunk_nbytes


def random(shape=(12, 10), chunks=(4, 5)):
    return da.random.default_rng(0).random(shape, chunks=chunks)


def arrive(*collections, finalized=True):
    """Return the expression as it arrives at the scheduler, and its tasks."""
    expr = collections_to_expr(collections)
    if finalized:
        expr = FinalizeCompute(expr)
    expr = pickle.loads(dumps(expr.optimize()))
    return expr, convert_legacy_graph(expr.__dask_graph__())


@dataclass
class Measured:
    """Sizes known beforehand beside those of the real results."""

    tasks: int
    failures: dict[str, int]
    wrong: dict[Any, Any] = field(default_factory=dict)
    misjudged: dict[Any, Any] = field(default_factory=dict)
    estimated: set[Any] = field(default_factory=set)
    open: set[Any] = field(default_factory=set)

    @property
    def inexact(self):
        return len(self.open) + len(self.estimated)


def measure(*collections, finalized=True):
    """Run the tasks one by one and compare all sizes."""
    expr, dsk = arrive(*collections, finalized=finalized)
    sizes = chunk_nbytes(expr, dsk)
    found = Measured(len(dsk), sizes.failures)
    assert not sizes.exact.keys() & sizes.estimated.keys()
    assert sizes.exact.keys() | sizes.estimated.keys() <= dsk.keys()
    priorities = order(dsk)
    results = {}
    for key in sorted(dsk, key=priorities.__getitem__):
        node = dsk[key]
        with np.errstate(all="ignore"):
            results[key] = node({d: results[d] for d in node.dependencies})
        actual = sizeof(results[key])
        if key in sizes.exact:
            if sizes.exact[key] != actual:
                found.wrong[key] = (sizes.exact[key], actual)
        elif key in sizes.estimated:
            found.estimated.add(key)
            if sizes.estimated[key] != actual:
                found.misjudged[key] = (sizes.estimated[key], actual)
        else:
            found.open.add(key)
    return found


def _double(block):
    return block * 2


def _mean_of_last_axis(block):
    return block.mean(axis=-1)


def _field():
    return random((20, 6, 6), (5, 3, 3))


WORKLOADS = {
    "random": lambda: random(),
    "ones": lambda: da.ones((8, 8), chunks=4),
    "from numpy": lambda: da.from_array(np.ones((10, 10)), chunks=5) + 1,
    "arange": lambda: da.arange(20, chunks=6) ** 2,
    "elementwise": lambda: (random() + 1) * 2 - random(),
    "where": lambda: da.where(random() > 0.5, random(), 0),
    "cast": lambda: random().astype("f4").sum(),
    "map_blocks": lambda: random().map_blocks(_double),
    "thin sum": lambda: random((40, 8), (40, 1)).map_blocks(np.copy).sum(axis=1),
    "mean of a sum": lambda: (random() + random()).mean(),
    "shifted": lambda: random()[1:, 1:] - random()[:-1, :-1],
    "vorticity": lambda: (_field()[1:, :, :-1] - _field()[:-1, :, :-1]) / 2
    - (_field()[:-1, :, 1:] - _field()[:-1, :, :-1]),
    "product": lambda: (random() @ random().T).sum(),
    "transposed": lambda: (random((8, 8), 3) + random((8, 8), 3).T).mean(),
    "quadratic": lambda: ((_field() * _field()).mean(0), (_field() ** 2).mean(0)),
    "anomaly": lambda: ((random() - random().mean(0)) ** 2).mean(0),
    "standardised": lambda: (random() - random().mean(0)) / random().std(0),
    "rechunked": lambda: random().rechunk((3, 10)).rechunk((12, 2)),
    "overlap": lambda: da.map_overlap(_double, random(), depth=1, boundary="none"),
    "reflected": lambda: da.map_overlap(_double, random(), depth=(1, 2), boundary="reflect"),
    "svd": lambda: da.linalg.svd(random((40, 4), (10, 4)))[:2],
    "qr": lambda: da.linalg.qr(random((40, 4), (10, 4))),
    "cumsum": lambda: (random().cumsum(0), random().cumsum(1, method="blelloch")),
    "nancumsum": lambda: da.nancumsum(random(), axis=0),
    "stacked": lambda: da.stack([random(), random()]).sum(0),
    "joined": lambda: da.concatenate([random(), random()], axis=1)[:, 3:17],
    "steps": lambda: random()[::-1, 2:8:3],
    "column": lambda: random()[::2, 3][1:-1],
    "element": lambda: random()[3, 4],
    "fancy": lambda: (random()[[1, 5, 3, 0]], da.take(random(), [3, 1, 7], axis=1)),
    "new axis": lambda: random()[:, None] * 2,
    "nan": lambda: (da.nansum(random(), axis=1), da.nanmean(random(), axis=0)),
    "nanvar": lambda: da.nanvar(random(), axis=1),
    "argmax": lambda: (random().argmax(0), random().argmax(), da.nanargmin(random(), axis=1)),
    "moments": lambda: (random().var(0), random().std(), da.reductions.moment(random(), 4, axis=0)),
    "complex": lambda: (random() + 1j * random()).var(0),
    "extremes": lambda: (random().min(0), random().max(0, keepdims=True)),
    "any": lambda: ((random() > 0.5).any(0), da.isnan(random()).sum()),
    "median": lambda: da.median(random(), axis=0),
    "histogram": lambda: da.histogram(random(), bins=10, range=(0, 1))[0],
    "sliced ones": lambda: da.ones((8, 8), chunks=4)[1:7, ::2],
    "rechunked ones": lambda: da.ones((8, 8), chunks=4).rechunk(3) + 1,
    "sum of ones": lambda: da.ones((8, 8), chunks=4).sum(0),
    "broadcast": lambda: da.broadcast_to(random(), (3, 12, 10)) * 2,
    "einsum": lambda: da.einsum("ij,kj->ik", random(), random()),
    "reshaped": lambda: (random().reshape(-1), random().reshape(4, 3, 10)),
    "triangle": lambda: da.tril(random((8, 8), 4)),
    "padded": lambda: (da.pad(random(), 2, mode="edge"), da.pad(random(), 2, mode="constant")),
    "rolled": lambda: (da.roll(random(), 3, axis=0), da.flip(random(), 0), da.diff(random())),
    "coarsened": lambda: da.coarsen(np.mean, random(), {0: 2, 1: 5}),
    "gufunc": lambda: da.apply_gufunc(
        _mean_of_last_axis, "(i)->()", random((12, 10), (4, 10)), output_dtypes=float
    ),
    "fft": lambda: da.fft.fft(random((12, 10), (4, 10)), axis=1),
    "average": lambda: da.average(random(), axis=0, weights=random()),
    "covariance": lambda: da.cov(random()),
}  # fmt: skip


#: What Dask's own array expressions can compute so far (2026.8).
QUERY_PLANNED = (
    "random",
    "ones",
    "from numpy",
    "arange",
    "elementwise",
    "cast",
    "map_blocks",
    "thin sum",
    "mean of a sum",
    "transposed",
    "quadratic",
    "anomaly",
    "rechunked",
    "overlap",
    "reflected",
    "stacked",
    "joined",
    "steps",
    "column",
    "element",
    "new axis",
    "nan",
    "extremes",
    "any",
    "sliced ones",
    "rechunked ones",
    "sum of ones",
)


def main():
    """Print for every workload under query planning the keys of unknown or wrong size."""
    report = {}
    for name in QUERY_PLANNED:
        made = WORKLOADS[name]()
        found = measure(*(made if isinstance(made, tuple) else (made,)))
        unknown = {*found.wrong, *found.open, *found.failures}
        report[name] = sorted(map(str, unknown))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
