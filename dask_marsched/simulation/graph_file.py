"""Saves collections in files, to simulate or compute them elsewhere."""

from __future__ import annotations

import json
import platform
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import distributed

from dask_marsched.installation import __version__

#: Begins every file. The second line is a header in JSON, the rest is a pickle.
_MAGIC = b"dask-marsched graph\n"
_FORMAT = 1
_VERSIONS = ("python", "dask", "distributed", "dask_marsched")


def save_graph(collection: Any, path: str | Path) -> None:
    """Save a collection in a file, to simulate it elsewhere.

    Symbolic layers are pickled as they are, so that the file is small and the sizes of chunks are
    known. It contains functions of ``__main__``; other modules are imported where it is loaded.

    Parameters
    ----------
    collection
        A Dask collection or a list of them.
    path
        The file to write.

    Raises
    ------
    TypeError
        If something in ``collection`` is no Dask collection or cannot be pickled.
    ValueError
        If ``collection`` is an empty list.
    OSError
        If the file cannot be written.
    """
    items = list(collection) if isinstance(collection, (list, tuple)) else [collection]
    if not items:
        raise ValueError("collection must be a Dask collection or a list of them, not empty")
    for item in items:
        if not dask.is_dask_collection(item):
            raise TypeError(
                "collection must be a Dask collection or a list of them; "
                f"there is a {type(item).__name__} in it"
            )
    header = {"format": _FORMAT, **_versions()}
    try:
        pickled = cloudpickle.dumps(items if isinstance(collection, (list, tuple)) else items[0])
    except Exception as error:  # whatever an object in the graph raises
        raise TypeError(f"the graph cannot be pickled: {error}") from error
    Path(path).write_bytes(_MAGIC + json.dumps(header).encode() + b"\n" + pickled)


def load_graph(path: str | Path, *, trusted: bool = False) -> Any:
    """Load the collection, or list of them, that `save_graph` wrote.

    Parameters
    ----------
    path
        The file.
    trusted
        True suppresses the warning.

    Warns
    -----
    UserWarning
        Loading runs code from the file. It can do anything that you can.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is no such file, of another format, damaged, or refers to missing packages.
    """
    header, pickled = _read(Path(path))
    if not trusted:
        warnings.warn(
            f"{path} holds pickled code that runs now; load only files whose origin you trust "
            "(load_graph(..., trusted=True) says so)",
            stacklevel=2,
        )
    try:
        return cloudpickle.loads(pickled)
    except Exception as error:  # unpickling calls what the file says
        here = _versions()
        other = ", ".join(
            f"{name} {header.get(name)} instead of {here[name]}"
            for name in _VERSIONS
            if header.get(name) != here[name]
        )
        made = f"; it was saved with {other}" if other else ""
        raise ValueError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}{made}"
        ) from error


def _versions() -> dict[str, str]:
    found = (platform.python_version(), dask.__version__, distributed.__version__, __version__)
    return dict(zip(_VERSIONS, found, strict=True))


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    if not content.startswith(_MAGIC):
        raise ValueError(f"{path} is not a graph file: dask_marsched.save_graph writes those")
    line, _, pickled = content[len(_MAGIC) :].partition(b"\n")
    try:
        header: dict[str, Any] = json.loads(line)
        version = header["format"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged: its header cannot be read") from None
    if version != _FORMAT:
        raise ValueError(
            f"{path} has the format {version!r}, this version of dask-marsched reads {_FORMAT}; "
            "save the graph again"
        )
    return header, pickled
