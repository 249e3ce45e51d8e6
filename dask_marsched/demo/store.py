"""Writes the demo's Zarr store, and recognises a complete one for reuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
import zarr
from zarr.codecs import BloscCodec

from dask_marsched.demo.layout import FIRST_DAY, STEPS_PER_DAY, VARIABLES, Field, Layout

DIMENSIONS = ("time", "latitude", "longitude")
MARKER = "dask_marsched_demo"
FORMAT = 3
"""Increased when the values of a layout change, so that older stores are rewritten."""
WRITERS = 2
"""Threads that write; each holds about three chunks, which bounds the memory."""

# The fastest of the codecs measured: it writes 450 MB/s and reads 3 GB/s on one core, against
# 210 MB/s and 1.2 GB/s with Zarr's default.
_COMPRESSOR = BloscCodec(cname="lz4", clevel=1, shuffle="bitshuffle")


def is_complete(path: Path, layout: Layout) -> bool:
    """Return whether `path` holds a complete store of this layout, written by the demo."""
    marker = _marker(path)
    return marker is not None and marker == _marker_of(layout, complete=True)


def is_ours(path: Path) -> bool:
    """Return whether the demo wrote `path`, so that it may replace or delete it."""
    return _marker(path) is not None


def write(path: Path, layout: Layout, written: Callable[[int], None] = lambda nbytes: None) -> None:
    """Write the store and its parent directories; replace a store of an earlier demo.

    `written` is called in the caller's thread after each chunk, with its uncompressed bytes.
    Raises OSError; FileExistsError if `path` holds something else, which is left alone.
    """
    if path.exists():
        empty = path.is_dir() and not any(path.iterdir())
        if not empty and not is_ours(path):
            raise FileExistsError(f"{path} exists and is no store of this demo: name another path")
        shutil.rmtree(path)
    _write_frame(path, layout)
    fields = {variable: Field(variable, layout) for variable in VARIABLES}
    arrays = {name: zarr.open_array(store=path, path=name, mode="r+") for name in fields}
    length = layout.chunks[0]

    def write_chunk(index: int, variable: str) -> int:
        values = fields[variable].chunk(index)
        arrays[variable][index * length : index * length + len(values)] = values
        return values.nbytes

    indices = range(-(-layout.shape[0] // length))
    with ThreadPoolExecutor(WRITERS) as pool:
        writes = [pool.submit(write_chunk, *which) for which in product(indices, VARIABLES)]
        try:
            for done in as_completed(writes):
                written(done.result())
        finally:
            pool.shutdown(cancel_futures=True)
    zarr.open_group(store=path, mode="r+").attrs[MARKER] = _marker_of(layout, complete=True)


def read_once(path: Path) -> int:
    """Read all files into the page cache, for equal runs; return the bytes read."""
    total = 0
    for file in path.rglob("*"):
        if file.is_file():
            with file.open("rb", buffering=0) as stream:
                while block := stream.read(1 << 20):
                    total += len(block)
    return total


def _write_frame(path: Path, layout: Layout) -> None:
    """Write metadata, axes, and the marker of an unfinished store."""
    steps, latitudes, longitudes = layout.shape
    hours = np.arange(steps) * (24 // STEPS_PER_DAY)
    coordinates = {
        "time": pd.Timestamp(FIRST_DAY) + pd.to_timedelta(hours, unit="h"),
        "latitude": ("latitude", np.linspace(90, -90, latitudes), {"units": "degrees_north"}),
        "longitude": (
            "longitude",
            np.arange(longitudes) * layout.resolution,
            {"units": "degrees_east"},
        ),
    }
    variables = {
        name: (
            DIMENSIONS,
            da.empty(layout.shape, chunks=layout.chunks, dtype=np.float32),
            {"long_name": long_name, "units": unit},
        )
        for name, (long_name, unit) in VARIABLES.items()
    }
    frame = xr.Dataset(variables, coordinates, {MARKER: _marker_of(layout, complete=False)})
    encoding = {
        name: {"chunks": layout.chunks, "compressors": (_COMPRESSOR,)} for name in VARIABLES
    }
    # Zarr format 3 does not specify consolidated metadata.
    frame.to_zarr(path, compute=False, encoding=encoding, zarr_format=3, consolidated=False)


def _marker_of(layout: Layout, *, complete: bool) -> dict[str, Any]:
    return {"format": FORMAT, "layout": asdict(layout), "complete": complete}


def _marker(path: Path) -> dict[str, Any] | None:
    if not (path / "zarr.json").is_file():
        return None
    try:
        marker = zarr.open_group(store=path, mode="r").attrs.get(MARKER)
    except (KeyError, ValueError, OSError):  # some other Zarr file, or a damaged one
        return None
    return marker if isinstance(marker, dict) else None
