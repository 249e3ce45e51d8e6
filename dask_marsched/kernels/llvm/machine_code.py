"""Loads the machine code of kernels from object files, without LLVM's library.

The library takes 70 MiB of memory to load a kernel of a few KiB. This loader supports what occurs
in kernels: 64-bit ELF for x86-64, four kinds of relocations, and three functions of the C library.
LLVM's own loader loads anything else.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from functools import cache
from typing import NamedTuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
#: ELF, 64 bits, little-endian, version 1.
_MAGIC = b"\x7fELF\x02\x01\x01"
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS, _NO_BITS, _RELOCATIONS_WITHOUT_ADDENDS = 2, 4, 8, 9
_WRITABLE, _ALLOCATED, _THREAD_LOCAL = 1, 2, 0x400
#: A symbol's value plus an addend; the same minus the place, in 32 bits (also of calls) and in 64.
_ADDRESS, _NEAR, _NEAR_CALL, _RELATIVE = 1, 2, 4, 24
#: Functions of the C library that LLVM may call in the place of a loop.
_KNOWN = frozenset({"memset", "memcpy", "memmove"})
#: Sections about exceptions, which kernels do not raise.
_IGNORED = frozenset({".eh_frame"})
_MOST_BYTES = 1 << 24


class UnloadableError(Exception):
    """An object file contains something that is not supported."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class MachineCode:
    """The machine code of one function in memory, freed with this object.

    Raises UnloadableError if something in the object file is not supported, or if memory cannot be
    made executable.
    """

    def __init__(self, content: bytes, name: str) -> None:
        if not possible():
            raise UnloadableError(f"{sys.platform}, {platform.machine()}")
        try:
            image, offset = _Object(content).linked(name)
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise UnloadableError(str(error)) from None
        self._memory = image.memory
        self.address = image.address + offset
        # never writable and executable at once
        protection = mmap.PROT_READ | mmap.PROT_EXEC
        if _c().mprotect(ctypes.c_void_p(image.address), len(image.memory), protection):
            raise UnloadableError("memory cannot be made executable")


def possible() -> bool:
    """Whether machine code can be loaded on this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32


class _Image(NamedTuple):
    memory: mmap.mmap
    address: int


class _Object:
    def __init__(self, content: bytes) -> None:
        self.content = content
        (magic, kind, machine, _, _, _, start, _, _, _, _, size, count, names) = (
            _HEADER.unpack_from(content)
        )
        if not magic.startswith(_MAGIC) or (kind, machine) != (_RELOCATABLE, _X86_64):
            raise UnloadableError("no object file for x86-64")
        if size != _SECTION.size:
            raise UnloadableError("sections of another size")
        self.sections = [
            _Section(*_SECTION.unpack_from(content, start + k * size)) for k in range(count)
        ]
        self.names = self._bytes(self.sections[names])

    def _bytes(self, section: _Section) -> bytes:
        if section.offset + section.size > len(self.content):
            raise UnloadableError("it is cut short")
        return self.content[section.offset : section.offset + section.size]

    def _loaded(self) -> list[int]:
        """Return the numbers of the sections with code or constants."""
        found = []
        for number, section in enumerate(self.sections):
            if not section.flags & _ALLOCATED or not section.size:
                continue
            if _text(self.names, section.name) in _IGNORED:
                continue
            if section.flags & (_WRITABLE | _THREAD_LOCAL) or section.kind == _NO_BITS:
                raise UnloadableError("variables")
            found.append(number)
        return found

    def linked(self, name: str) -> tuple[_Image, int]:
        """Return code and constants in memory, and the offset of a function in them."""
        offsets, total = {}, 0
        for number in self._loaded():
            section = self.sections[number]
            alignment = max(1, section.alignment)
            if alignment > mmap.PAGESIZE or alignment & (alignment - 1):
                raise UnloadableError("an alignment above that of pages")
            offsets[number] = -(-total // alignment) * alignment
            total = offsets[number] + section.size
        if not 0 < total <= _MOST_BYTES:
            raise UnloadableError(f"{total} bytes of code")
        memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        image = _Image(memory, ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        for number, offset in offsets.items():
            section = self.sections[number]
            memory[offset : offset + section.size] = self._bytes(section)
        function = None
        for section in self.sections:
            if section.kind == _SYMBOLS:
                function = self._symbols(section, offsets, image).get(name, function)
            elif section.kind == _RELOCATIONS_WITHOUT_ADDENDS:
                raise UnloadableError("relocations without addends")
            elif section.kind == _RELOCATIONS and section.info in offsets:
                self._relocate(section, offsets, image)
        if function is None or not image.address <= function < image.address + total:
            raise UnloadableError(f"no function {name}")
        return image, function - image.address

    def _symbols(self, table: _Section, offsets: dict[int, int], image: _Image) -> dict[str, int]:
        """Return the addresses of the functions in the file."""
        names = self._bytes(self.sections[table.link])
        return {
            _text(names, symbol[0]): image.address + offsets[symbol[3]] + symbol[4]
            for symbol in _SYMBOL.iter_unpack(self._bytes(table))
            if symbol[3] in offsets
        }

    def _relocate(self, table: _Section, offsets: dict[int, int], image: _Image) -> None:
        symbols = self.sections[table.link]
        named = self._bytes(symbols)
        names = self._bytes(self.sections[symbols.link])
        size = self.sections[table.info].size
        for where, kind, number, addend in _RELOCATION.iter_unpack(self._bytes(table)):
            name, _, _, section, value, _ = _SYMBOL.unpack_from(named, number * _SYMBOL.size)
            if section in offsets:
                target = image.address + offsets[section] + value
            elif section == 0 and _text(names, name) in _KNOWN:
                target = _function(_text(names, name))
            else:
                raise UnloadableError(f"symbol {_text(names, name)!r}")
            length = 8 if kind in (_ADDRESS, _RELATIVE) else 4
            if where + length > size:
                raise UnloadableError("a relocation outside of its section")
            place = offsets[table.info] + where
            result = target + addend
            if kind == _ADDRESS:
                struct.pack_into("<Q", image.memory, place, result)
            elif kind in (_NEAR, _NEAR_CALL, _RELATIVE):
                form = "<q" if kind == _RELATIVE else "<i"
                struct.pack_into(form, image.memory, place, result - image.address - place)
            else:
                raise UnloadableError(f"relocation {kind}")


def _text(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode("ascii")


@cache
def _c() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@cache
def _function(name: str) -> int:
    return ctypes.cast(getattr(_c(), name), ctypes.c_void_p).value or 0
