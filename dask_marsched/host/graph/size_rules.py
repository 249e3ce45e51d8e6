"""Derives the sizes of single functions' results from the descriptions of their arguments."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from dask._task_spec import Alias, TaskRef
from dask.array.chunk import getitem
from dask.array.core import getter, getter_inline, getter_nofancy
from dask.sizeof import sizeof
from dask.typing import Key

from dask_marsched.core.chunk_sizes import Shape, sliced_shape
from dask_marsched.host.graph.array_layers import keeps_its_type

GETTERS = frozenset({getitem, getter, getter_inline, getter_nofancy, operator.getitem})
#: Types whose size is the same wherever they are measured.
_PLAIN = (np.ndarray, np.generic, int, float, complex, bool, str, bytes, slice, type(None))
#: `dask.sizeof` measures larger collections by a random sample.
_MAX_MEASURED = 10


class ChunkInfo(NamedTuple):
    """Description of a result."""

    nbytes: int  #: Bytes.
    certain: bool  #: False if the size is an estimate.
    shape: Shape | None = None  #: None if it is not an array of known shape.
    itemsize: int = 0  #: Bytes of an element.
    #: True if it repeats a single element by strides of zero. None if only some strides are zero,
    #: so that the size of a view of it depends on the view.
    repeated: bool | None = False
    kind: str = ""  #: NumPy's letter for the kind of type, such as "f"; empty if unknown.
    members: tuple[ChunkInfo, ...] = ()  #: The elements of a tuple.
    #: True for an array outside of memory, whose slices become arrays of its type.
    stored: bool = False


def named(arg: Any) -> Key | None:
    """Return the key of the result that an argument stands for; None for other arguments."""
    if isinstance(arg, TaskRef):
        return arg.key
    return arg.target if isinstance(arg, Alias) else None


def literal(value: Any) -> ChunkInfo:
    """Describe a value that the graph itself holds."""
    if not isinstance(value, np.ndarray):
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if isinstance(dtype, np.dtype) and type(shape) is tuple and not keeps_its_type(value):
            itemsize, kind = dtype.itemsize, dtype.kind
            array = ChunkInfo(sizeof(value), False, shape, itemsize, False, kind, stored=True)
            return array._replace(shape=None) if dtype.hasobject else array
        return ChunkInfo(sizeof(value), _is_plain(value))
    if value.dtype.hasobject:
        return ChunkInfo(sizeof(value), False)
    return ChunkInfo(
        sizeof(value),
        True,
        value.shape,
        value.itemsize,
        None if 0 in value.strides else False,
        value.dtype.kind,
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= _MAX_MEASURED and all(map(_is_plain, value))
    return isinstance(value, _PLAIN) and not getattr(
        getattr(value, "dtype", None), "hasobject", False
    )


def sliced(func: Any, source: ChunkInfo, index: Any) -> ChunkInfo | None:
    """Describe a chunk indexed by one of Dask's getters."""
    if source.members:
        if type(index) is int and -len(source.members) <= index < len(source.members):
            return source.members[index]
        return None
    if source.shape is None:
        return None
    shape = sliced_shape(source.shape, index)
    if not shape:  # not understood, or a scalar
        return None
    elements = prod(shape)
    full = _array(shape, source)
    if source.stored:
        return full._replace(certain=func is not getitem and func is not operator.getitem)
    if source.repeated is False:
        return full
    if func is getitem and prod(source.shape) >= 2 * elements:
        return full  # Dask copies what is at most half of its base.
    if type(index) is tuple and not all(
        entry is None or isinstance(entry, slice | int) for entry in index
    ):
        return full
    if source.repeated is None:
        return full._replace(certain=False, repeated=None)
    return full._replace(nbytes=min(elements, 1) * source.itemsize, repeated=True)


def broadcast(source: ChunkInfo, shape: Any) -> ChunkInfo | None:
    """Describe a view that `numpy.broadcast_to` makes."""
    if source.shape is None or not isinstance(shape, tuple):
        return None
    alone = source.repeated or set(source.shape) <= {1}
    return source._replace(
        nbytes=source.nbytes if prod(shape) else 0, shape=shape, repeated=True if alone else None
    )


def transpose(source: ChunkInfo, shape: Shape | None) -> ChunkInfo | None:
    """Describe a transposed view."""
    return None if shape is None or source.shape is None else source._replace(shape=shape)


def merge(chunks: Sequence[ChunkInfo | None]) -> ChunkInfo | None:
    """Describe the sum or product of arrays of one shape; some of them may be unknown."""
    known = [chunk for chunk in chunks if chunk is not None and chunk.shape]
    if not known:
        return None
    first = known[0]
    certain = (
        len(known) == len(chunks)
        and all(chunk.certain for chunk in known)
        and {(chunk.shape, chunk.itemsize) for chunk in known} == {(first.shape, first.itemsize)}
    )
    return _array(first.shape or (), first)._replace(certain=certain)


def _qr(matrix: ChunkInfo, **kwargs: Any) -> ChunkInfo | None:
    if kwargs or matrix.shape is None or len(matrix.shape) != 2 or 0 in matrix.shape:
        return None
    m, n = matrix.shape
    floating = matrix.kind in ("f", "c") and matrix.itemsize >= 4
    base = matrix._replace(certain=matrix.certain and floating)
    return _tuple(_array((m, min(m, n)), base), _array((min(m, n), n), base))


def _svd(matrix: ChunkInfo, **kwargs: Any) -> ChunkInfo | None:
    if kwargs.keys() - {"full_matrices"} or matrix.shape is None or len(matrix.shape) != 2:
        return None
    m, n = matrix.shape
    k = min(m, n)
    left, right = (m, n) if kwargs.get("full_matrices", True) else (k, k)
    base = matrix._replace(certain=matrix.certain and matrix.kind == "f" and matrix.itemsize >= 4)
    return _tuple(_array((m, left), base), _array((k,), base), _array((right, n), base))


def _dot(left: ChunkInfo, right: ChunkInfo) -> ChunkInfo | None:
    if left.shape is None or right.shape is None:
        return None
    if len(left.shape) != 2 or len(right.shape) != 2:
        return None
    same = (left.kind, left.itemsize) == (right.kind, right.itemsize) and left.kind != ""
    base = left._replace(certain=left.certain and right.certain and same)
    return _array((left.shape[0], right.shape[1]), base)


def _vstack(*chunks: ChunkInfo) -> ChunkInfo | None:
    shapes = [chunk.shape for chunk in chunks if chunk.shape is not None]
    if not chunks or len(shapes) < len(chunks) or any(len(shape) != 2 for shape in shapes):
        return None
    same = len({(chunk.kind, chunk.itemsize) for chunk in chunks}) == 1
    base = chunks[0]._replace(certain=same and all(chunk.certain for chunk in chunks))
    return _array((sum(shape[0] for shape in shapes), shapes[0][1]), base)


def _array(shape: Shape, like: ChunkInfo) -> ChunkInfo:
    nbytes = prod(shape) * like.itemsize
    return ChunkInfo(nbytes, like.certain, shape, like.itemsize, False, like.kind)


def _tuple(*members: ChunkInfo) -> ChunkInfo:
    nbytes = sys.getsizeof(members) + sum(member.nbytes for member in members)
    return ChunkInfo(nbytes, all(member.certain for member in members), members=members)


#: Rules by library and name of the function; a rule takes the descriptions of its arguments.
RULES: Mapping[tuple[str, str], Callable[..., ChunkInfo | None]] = {
    ("dask", "_wrapped_qr"): _qr,
    ("numpy", "qr"): _qr,
    ("numpy", "svd"): _svd,
    ("numpy", "dot"): _dot,
    ("numpy", "vstack"): _vstack,
}
