"""Describes this processor, which the names of kernels' files depend on, without LLVM's library.

Machines of several kinds may share a home directory, and so the cache. Kernels use only
instructions that Linux names in its description of the processor, even if LLVM finds more.
"""

from __future__ import annotations

import platform
import sys
from functools import cache
from pathlib import Path

_DESCRIPTION = Path("/proc/cpuinfo")
#: Fields that distinguish kinds of processors.
_FIELDS = {
    "x86_64": ("vendor_id", "cpu family", "model", "stepping", "flags"),
    "aarch64": (
        "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision",
        "Features",
    ),
}  # fmt: skip
#: Linux's names of features, where LLVM's differ.
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
    """Return a description that is the same on processors with the same machine code, or None."""
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
    # cores may be of several kinds: use the features that all of them have
    common = set.intersection(*(set(value.split()) for value in found[wanted[-1]]))
    rest = {name: "; ".join(sorted(values)) for name, values in found.items()}
    return {**rest, wanted[-1]: " ".join(sorted(common))}


def features(found: dict[str, bool]) -> str:
    """Return the features, in LLVM's notation, that LLVM has ``found`` and code may use."""
    fields = _fields() if platform.machine() == "x86_64" else None
    named = None if fields is None else set(fields["flags"].split())
    return ",".join(
        ("+" if has and (named is None or _OTHERWISE.get(name, name) in named) else "-") + name
        for name, has in sorted(found.items())
    )
