"""Copies small views of large arrays, so that the arrays are freed: `compact`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Only arrays of at least this many bytes are worth a copy of their view.
_LARGE = 1 << 20
#: A view is copied if it takes at most this share of the array's bytes.
_COPIED = 1 / 8


def compact(value: object) -> object:
    """Return a copy of a small view that alone keeps a large array alive, otherwise the value.

    NumPy iterates over the copy as over the view, so that sums round alike.
    """
    if type(value) is not np.ndarray or value.dtype.kind not in "biufcmM":
        return value
    base = value.base
    if type(base) is not np.ndarray or base.base is not None or base.nbytes < _LARGE:
        return value
    if not 0 < value.nbytes <= base.nbytes * _COPIED:
        return value
    del base
    if _references(value) > _ALONE:
        return value
    view = value.squeeze()
    if any(stride <= 0 for stride in view.strides):  # flipped, or broadcast
        return value
    own = copy_alike(view).reshape(value.shape)
    own.flags.writeable = value.flags.writeable
    return own


def copy_alike(view: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return a copy with axes in the same order, and a gap between elements where the view has one.

    A contiguous copy of a view with gaps would be iterated as fewer and longer axes.
    """
    axes = sorted(range(view.ndim), key=lambda axis: -view.strides[axis])
    room, wanted = [1], view.itemsize
    for axis in reversed(axes):
        room[0] += view.strides[axis] != wanted
        room.insert(0, view.shape[axis])
        wanted = view.strides[axis] * view.shape[axis]
    whole = np.empty(room, view.dtype)
    part: tuple[Any, ...] = (*(slice(view.shape[axis]) for axis in axes), 0)
    own: NDArray[np.generic] = whole[part].transpose(np.argsort(axes))
    np.copyto(own, view)
    return own


def _references(view: NDArray[np.generic]) -> int:
    base = view.base
    return sys.getrefcount(base)


#: References to an array that only a view holds, which depends on the version of Python.
_ALONE = _references(np.empty(2)[:1])
