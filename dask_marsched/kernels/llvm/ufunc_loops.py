"""Finds the addresses of NumPy's inner loops, so that compiled kernels can call them.

A kernel calls NumPy's own code for functions such as ``exp`` on blocks that fit into the nearest
cache, so that results are the same to the last bit. The addresses are read from ``PyUFuncObject``
of NumPy's public C interface (numpy/ufuncobject.h). The other fields are compared with the
attributes of the ufunc, and a loop with the ufunc's results, before a kernel calls it.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np


class _UFunc(ctypes.Structure):
    _fields_ = [
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("ntypes", ctypes.c_int),
        ("reserved1", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("types", ctypes.POINTER(ctypes.c_ubyte)),
    ]


class UfuncLoop(NamedTuple):
    """Addresses of an inner loop, and of the data that is passed to it."""

    function: int
    data: int


_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@cache
def loop(ufunc: np.ufunc, dtypes: tuple[np.dtype[Any], ...]) -> UfuncLoop | None:
    """Return a ufunc's inner loop for certain dtypes of operands and result.

    None if there is no such loop, or the structure is not as in NumPy's header.
    """
    if sys.implementation.name != "cpython":
        return None
    found = _UFunc.from_address(id(ufunc) + object.__basicsize__)
    counts = (found.nin, found.nout, found.nargs, found.ntypes)
    if counts != (ufunc.nin, ufunc.nout, ufunc.nargs, len(ufunc.types)):
        return None
    if found.name != ufunc.__name__.encode():
        return None
    for number, text in enumerate(ufunc.types):
        numbers = found.types[number * ufunc.nargs : (number + 1) * ufunc.nargs]
        chars = text.replace("->", "")
        if [np.dtype(c).num for c in chars] != numbers:
            return None
        if tuple(map(np.dtype, chars)) == dtypes:
            candidate = UfuncLoop(found.functions[number] or 0, found.data[number] or 0)
            return candidate if candidate.function and _works(ufunc, dtypes, candidate) else None
    return None


def _works(ufunc: np.ufunc, dtypes: tuple[np.dtype[Any], ...], candidate: UfuncLoop) -> bool:
    """Whether a loop gives the same results as its ufunc."""
    operands = [np.arange(1, 9).astype(dtype) for dtype in dtypes[:-1]]
    result = np.zeros(8, dtypes[-1])
    arrays = [*operands, result]
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    length = (ctypes.c_ssize_t * 1)(8)
    steps = (ctypes.c_ssize_t * len(arrays))(*(a.itemsize for a in arrays))
    with np.errstate(all="ignore"):
        _CALL(candidate.function)(pointers, length, steps, candidate.data or None)
        return np.array_equal(result, ufunc(*operands), equal_nan=dtypes[-1].kind in "fc")
