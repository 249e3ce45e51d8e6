"""Tells which machine code this processor runs, without LLVM's library.

Machine code is kept on disk, and a home directory may be shared by machines of several kinds. So a
file's name depends on the processor as Linux describes it, and code uses no instructions but those
that are named in that description, even where LLVM finds more.
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from pathlib import Path

_DESCRIPTION = Path("/proc/cpuinfo")
#: Lines that tell one kind of processor from another; of all cores the same.
_FIELDS = {
    "x86_64": ("vendor_id", "cpu family", "model", "stepping", "flags"),
    "aarch64": (
        "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
        "Features",
    ),
}  # fmt: skip
#: Linux's names of what LLVM calls otherwise.
_OTHERWISE = {
    "64bit": "lm", "avx512bf16": "avx512_bf16", "avx512bitalg": "avx512_bitalg",
    "avx512fp16": "avx512_fp16", "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni",
    "avx512vp2intersect": "avx512_vp2intersect", "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni", "bmi": "bmi1", "crc32": "sse4_2", "evex512": "avx512f",
    "lzcnt": "abm", "pclmul": "pclmulqdq", "prfchw": "3dnowprefetch", "rdrnd": "rdrand",
    "sahf": "lahf_lm",
    "sha": "sha_ni", "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2",
}  # fmt: skip


@cache
def description() -> str | None:
    """Return what tells this processor from those that other machine code is for.

    Returns
    -------
    str or None
        None where it is not known.
    """
    fields = _fields()
    return None if fields is None else f"{platform.machine()} {sorted(fields.items())}"


@cache
def _fields() -> dict[str, str] | None:
    wanted = _FIELDS.get(platform.machine(), ())
    if sys.platform != "linux" or not wanted:
        return None
    found: dict[str, set[str]] = {}
    try:
        for line in _DESCRIPTION.read_text("ascii", "replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                found.setdefault(name.strip(), set()).add(value.strip())
    except OSError:
        return None
    if wanted[-1] not in found:
        return None
    # of cores of several kinds, all that they have in common
    common = set.intersection(*(set(value.split()) for value in found[wanted[-1]]))
    rest = {name: "; ".join(sorted(values)) for name, values in found.items()}
    return {**rest, wanted[-1]: " ".join(sorted(common))}


def features(found: dict[str, bool]) -> str:
    """Return the features that code may use, as LLVM wants to be told.

    Parameters
    ----------
    found
        By LLVM's name, whether this processor has it.
    """
    fields = _fields() if platform.machine() == "x86_64" else None
    named = None if fields is None else set(fields["flags"].split())
    return ",".join(
        ("+" if has and (named is None or _OTHERWISE.get(name, name) in named) else "-") + name
        for name, has in sorted(found.items())
    )
