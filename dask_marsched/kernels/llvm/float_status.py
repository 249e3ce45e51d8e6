"""Reads the processor's floating-point flags, which show whether NumPy would have warned."""

from __future__ import annotations

import ctypes
import platform

#: Values of FE_DIVBYZERO, FE_OVERFLOW and FE_INVALID in <fenv.h>.
_X86 = {"divide": 4, "over": 8, "invalid": 1}
_ARM = {"divide": 2, "over": 4, "invalid": 1}
_FLAGS = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}


class FloatStatus:
    """The floating-point flags of the calling thread, read by C's ``fetestexcept``.

    Raises ImportError if the flags of this processor or system are not known.
    """

    def __init__(self) -> None:
        flags = _FLAGS.get(platform.machine())
        library = _library()
        if flags is None or library is None:
            raise ImportError("the floating-point flags of this processor are not known")
        self._flags = flags
        self._clear, self._test = library.feclearexcept, library.fetestexcept
        self.mask = sum(flags.values())
        self.addresses = [
            ctypes.cast(function, ctypes.c_void_p).value or 0
            for function in (self._clear, self._test)
        ]

    def names(self, raised: int) -> set[str]:
        """Return the names, as in `numpy.errstate`, of the flags in a number."""
        return {name for name, flag in self._flags.items() if raised & flag}

    def clear(self) -> None:
        """Clear the flags."""
        self._clear(self.mask)

    def raised(self) -> set[str]:
        """Return the names of the flags that are raised."""
        return self.names(self._test(self.mask))


def _library() -> ctypes.CDLL | None:
    if platform.system() not in ("Linux", "Darwin"):
        return None
    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
            _ = library.feclearexcept, library.fetestexcept
        except (OSError, AttributeError):
            continue
        return library
    return None
