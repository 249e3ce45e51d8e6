"""The processor's floating-point flags: how a kernel knows that NumPy would have warned."""

from __future__ import annotations

import ctypes
import platform
from typing import NamedTuple

#: Values of FE_DIVBYZERO, FE_OVERFLOW and FE_INVALID in <fenv.h>.
_FLAGS = {
    "x86_64": {"divide": 4, "over": 8, "invalid": 1},
    "AMD64": {"divide": 4, "over": 8, "invalid": 1},
    "aarch64": {"divide": 2, "over": 4, "invalid": 1},
    "arm64": {"divide": 2, "over": 4, "invalid": 1},
}


class FloatStatus(NamedTuple):
    """Addresses of C's functions, and the flags they take.

    Attributes
    ----------
    clear, test
        Of ``feclearexcept`` and ``fetestexcept``.
    flags
        By name in `numpy.errstate`.
    """

    clear: int
    test: int
    flags: dict[str, int]

    @property
    def mask(self) -> int:
        """All flags together."""
        return sum(self.flags.values())

    def names(self, raised: int) -> set[str]:
        """Return the names of the flags that are raised."""
        return {name for name, flag in self.flags.items() if raised & flag}


def find() -> FloatStatus | None:
    """Return how to reach the flags on this machine, or None where it is not known."""
    flags = _FLAGS.get(platform.machine())
    if flags is None or platform.system() not in ("Linux", "Darwin"):
        return None
    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
            functions = (library.feclearexcept, library.fetestexcept)
        except (OSError, AttributeError):
            continue
        clear, test = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions)
        return FloatStatus(clear, test, flags)
    return None


class Functions:
    """The same, to be called from Python."""

    def __init__(self, status: FloatStatus) -> None:
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
        self._status = status
        self._clear, self._test = kind(status.clear), kind(status.test)

    def clear(self) -> None:
        """Clear the flags."""
        self._clear(self._status.mask)

    def raised(self) -> set[str]:
        """Return the names of the flags that are raised."""
        return self._status.names(self._test(self._status.mask))


def functions() -> Functions | None:
    """Return how to reach the flags from Python, or None where it is not known."""
    found = find()
    return None if found is None else Functions(found)
