"""Replaces functions that write collections to files by the computation of what they write."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any

import dask
import dask.array

#: Modules, classes in them (or none), and their functions that write collections.
_WRITERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("dask.array.core", "Array", ("to_hdf5", "to_tiledb", "to_zarr")),
    ("dask.array", "", ("to_hdf5", "to_npy_stack", "to_tiledb", "to_zarr")),
    ("dask.array.core", "", ("to_hdf5", "to_npy_stack", "to_zarr")),
    ("dask.bag", "Bag", ("to_avro", "to_textfiles")),
    ("dask.dataframe", "DataFrame",
     ("to_csv", "to_hdf", "to_json", "to_orc", "to_parquet", "to_sql")),
    ("dask.dataframe", "Series", ("to_csv", "to_hdf", "to_json", "to_sql")),
    ("dask.dataframe", "",
     ("to_csv", "to_hdf", "to_json", "to_orc", "to_parquet", "to_sql")),
    ("xarray", "Dataset", ("to_netcdf", "to_zarr")),
    ("xarray", "DataArray", ("to_netcdf", "to_zarr")),
    ("xarray", "DataTree", ("to_netcdf", "to_zarr")),
    ("xarray", "", ("save_mfdataset",)),
)  # fmt: skip


class _Sink:
    """A target of ``dask.array.store`` that drops all chunks."""

    def __setitem__(self, index: Any, chunk: Any) -> None:
        pass


def _nothing(part: Any) -> None:
    """Take the place of a function that writes a partition."""


@contextlib.contextmanager
def intercept_writes() -> Iterator[None]:
    """Replace writers, which touch files before they compute, by functions that only compute."""
    with contextlib.ExitStack() as undo:
        for module_name, class_name, names in _WRITERS:
            owner = _import(module_name)
            if owner is not None and class_name:
                owner = getattr(owner, class_name, None)
            for name in names:
                before = getattr(owner, name, None)
                if before is not None:
                    undo.callback(setattr, owner, name, before)
                    setattr(owner, name, _write_nothing)
        yield


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:  # then the script cannot use it either
        return None


def _write_nothing(*args: Any, **kwargs: Any) -> Any:
    """Compute the chunks of the collections among the arguments, as a writer would."""
    written = [part for item in _collections([*args, *kwargs.values()]) for part in _parts(item)]
    if not kwargs.get("compute", True):
        # `delayed` takes no data frames that are inside of a list
        in_parts = [p.to_delayed() if hasattr(type(p), "map_partitions") else p for p in written]
        return dask.delayed(list)(in_parts)
    dask.compute(written)
    return None


def _collections(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _collections(value)
        elif dask.is_dask_collection(value):
            yield value


def _parts(collection: Any) -> list[Any]:
    """Return what writing a collection computes, chunk by chunk, without gathering results."""
    if isinstance(collection, dask.array.Array):
        sink: Any = _Sink()
        return [dask.array.store(collection, sink, lock=False, compute=False)]
    if hasattr(collection, "map_partitions"):
        return [collection.map_partitions(_nothing)]
    if hasattr(collection, "subtree"):  # an xarray.DataTree
        return [part for node in collection.subtree for part in _parts(node.to_dataset())]
    if hasattr(collection, "to_dataset") and not hasattr(collection, "data_vars"):
        return _of_variable(collection.variable)
    if hasattr(collection, "variables"):
        return [part for v in collection.variables.values() for part in _of_variable(v)]
    return [collection]


def _of_variable(variable: Any) -> list[Any]:
    return _parts(variable.data) if dask.is_dask_collection(variable.data) else []
