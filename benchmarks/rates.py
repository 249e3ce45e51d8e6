r"""Measures how fast a core does what tasks do, to check `simulation.costs.derived.RATES`.

Run it as a nanny runs its workers, with one thread and memory given back to the system:

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MALLOC_TRIM_THRESHOLD_=65536 \
        python -m benchmarks.rates

Time of the processor counts, so that other work on the machine disturbs little. As in a
computation, the inputs are not in the caches and the results stay.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dask_marsched.host.twin.operation_kinds import TaskOperation
from dask_marsched.simulation.costs.derived import RATES

_SIDE = 1024  # a chunk of 8 MiB, the benchmark's typical one
_CHUNK = _SIDE * _SIDE * 8
_REPEAT = 16
_GENERATOR = np.random.default_rng(0)

Array = np.ndarray[Any, np.dtype[np.float64]]

#: A typical operation of each kind; what it is given are chunks, as many as it has parameters.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x, y: x + y,
    "transcendental": lambda x: np.exp(x),
    "reduction": lambda x: x.sum(axis=0),
    "nan": lambda x: np.nansum(x, axis=0),
    "moments": lambda x: x.var(axis=0),
    "product": lambda x, y: x @ y,
    "qr": lambda x: np.linalg.qr(x.reshape(-1, 64)),
    "svd": lambda x: np.linalg.svd(x[:256, :256]),
    "cholesky": lambda x: np.linalg.cholesky(x),
    "scan": lambda x: x.cumsum(axis=0),
    "sort": lambda x: np.sort(x, axis=0),
    "fft": lambda x: np.fft.fft2(x),
    "random": lambda: _GENERATOR.random((_SIDE, _SIDE)),
    "copy": lambda x, y: np.concatenate([x, y]),
    "transpose": lambda x: x.T.copy(),
    "slice": lambda x: x[: _SIDE // 2, : _SIDE // 2].copy(),
}
#: Those that look at a part of the chunk only: bytes.
_PARTS = {"svd": 256 * 256 * 8}


def measure(kind: str) -> float:
    """Return the rate of a kind of operation: units of its `amount` per second."""
    function = OPERATIONS[kind]
    amount = RATES[kind].amount
    count = function.__code__.co_argcount
    kept, taken = [], []
    for _ in range(_REPEAT):
        chunks = [_GENERATOR.random((_SIDE, _SIDE)) for _ in range(count)]
        if kind == "cholesky":
            chunks = [x + x.T + 2 * _SIDE * np.eye(_SIDE) for x in chunks]
        kept += [chunks, _GENERATOR.random((4, _SIDE, _SIDE))]  # the caches hold something else
        started = time.process_time()
        result = function(*chunks)
        taken.append(time.process_time() - started)
        kept.append(result)
    made = sum(array.nbytes for array in result) if isinstance(result, tuple) else result.nbytes
    read = _PARTS.get(kind, count * _CHUNK)
    largest = (min(read, _CHUNK), _CHUNK if count == 2 else 0)
    operation = TaskOperation(kind, read, made, largest, count)
    return amount(operation) / float(np.median(taken))


def measure_read(directory: Path) -> float | None:
    """Return the bytes that are read from a compressed Zarr array in a second; None without it."""
    try:
        import zarr
    except ImportError:
        return None
    data = np.random.default_rng(0).random((_SIDE, _SIDE)).astype("float32").astype("float64")
    array: Any = zarr.create_array(str(directory / "a.zarr"), data=data, chunks=data.shape)
    taken = []
    for _ in range(_REPEAT):
        started = time.process_time()
        array[:, :]
        taken.append(time.process_time() - started)
    return data.nbytes / float(np.median(taken))


def main() -> None:
    """Print the rates."""
    with tempfile.TemporaryDirectory() as directory:
        found = {kind: measure(kind) for kind in OPERATIONS}
        read = measure_read(Path(directory))
    if read is not None:
        found["read"] = read
    for kind, rate in found.items():
        print(f"{kind:<16}{rate:8.2g} a second; assumed {RATES[kind].stock:.2g}")


if __name__ == "__main__":
    main()
