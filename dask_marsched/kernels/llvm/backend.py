"""Evaluates expressions by compiled kernels, from the cache or compiled in another process.

llvmlite, numba's compiler library, compiles a kernel in 0.1 s of processor time and without the
interpreter's lock; numba itself took 0.5 to 1.5 s, most of it with the lock. Without a cache, or on
other systems than Linux, this process compiles.
"""

from __future__ import annotations

import ctypes
import importlib.util
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_marsched.kernels import cache_files, proof
from dask_marsched.kernels.backend import Results, UnsupportedError
from dask_marsched.kernels.bound_expression import BoundExpression, as_array
from dask_marsched.kernels.llvm import (
    compiler_process,
    kernel_files,
    machine_code,
    processor,
    ufunc_loops,
)
from dask_marsched.kernels.llvm.float_status import FloatStatus
from dask_marsched.kernels.llvm.kernel_files import DOUBT, Key, Made
from dask_marsched.kernels.operations import UFUNCS

if TYPE_CHECKING:
    from dask_marsched.kernels.llvm.compiler import Compiler

_LONG = ctypes.c_int64
_FUNCTION = ctypes.CFUNCTYPE(_LONG, *[_LONG] * 7)
_WHOLE = 1 << 62  #: More elements than any row has
_MOST_KERNELS = 256  #: Kernels that are kept in memory while nobody uses them, 8 KiB each


class _Code:
    """A kernel's function; ``owner`` holds its machine code in memory."""

    def __init__(self, owner: Any, address: int) -> None:
        self.owner = owner
        self.function = _FUNCTION(address)


class _Linked(NamedTuple):
    """A kernel in memory, with the addresses of the functions that it calls; see `Made`."""

    code: _Code
    functions: Any
    scratch: int
    doubtful: bool
    calls: bool  #: whether it calls inner loops of NumPy


class _Scalars:
    """Keeps an expression's scalars in memory, as they are the same in nearly all chunks."""

    def __init__(self, dtypes: Sequence[np.dtype[Any]]) -> None:
        self._dtypes = dtypes
        #: By place: the value, its type, its address, and the array at that address. Entries are
        #: set once, as other threads may read them.
        self._known: list[tuple[Any, Any, int, Any] | None] = [None] * len(dtypes)

    def __call__(self, place: int, value: Any) -> Any:
        """Return the address of a scalar, or an array that contains it."""
        known = self._known[place]
        if known is None:
            array = as_array(value, self._dtypes[place])
            address = array.__array_interface__["data"][0]
            self._known[place] = (value, type(value), address, array)
            return array
        # -0.0 is equal to 0.0 (in complex numbers, too), and NaN to nothing
        alike = known[0] == value and type(value) is known[1] and value
        if alike and not issubclass(known[1], (complex, np.complexfloating)):
            return known[2]
        return as_array(value, self._dtypes[place])


class LLVMBackend:
    """Evaluates expressions by kernels that LLVM compiles and that ``directory`` keeps, if given.

    Raises ImportError without llvmlite, or if the floating-point flags cannot be read.
    """

    name = "llvm"

    def __init__(self, directory: Path | None) -> None:
        if importlib.util.find_spec("llvmlite") is None:
            raise ModuleNotFoundError("No module named 'llvmlite'")
        self._status = FloatStatus()
        #: Guards LLVM's library, which is for one thread at a time.
        self._lock = threading.Lock()
        self._directory = directory
        self._scratch = Scratch()
        #: The latest kernels, for new shapes of the same arrays.
        self._known: dict[Key, _Linked] = {}
        #: By name, all code in memory, including code that only its users hold.
        self._loaded: weakref.WeakValueDictionary[str, _Code] = weakref.WeakValueDictionary()
        #: Whether claims are true, as far as they were tried.
        self._proofs: dict[proof.Claim, bool] = {}
        self._linking = threading.Lock()

    @cached_property
    def _compiler(self) -> Compiler:
        from dask_marsched.kernels.llvm.compiler import Compiler

        return Compiler()

    @cached_property
    def _kind(self) -> str:
        """Versions and the processor, which all kernels depend on."""
        import llvmlite  # this does not load LLVM's library

        runs_on = processor.description()
        if runs_on is None:
            with self._lock:
                runs_on = self._compiler.processor
        return f"{llvmlite.__version__} {np.__version__} {kernel_files.sources()} {runs_on}"

    def _path(self, key: Key) -> Path | None:
        if self._directory is None:
            return None
        text = kernel_files.description(key, self._kind)
        return cache_files.path_of(text, self._directory, ".o")

    def prepares_quickly(self, bound: BoundExpression, exact: bool) -> bool:
        """See `Backend.prepares_quickly`."""
        functions = proof.functions(bound)
        try:
            if exact and not all(map(self._known_of, proof.claims(bound))):
                return False
        except UnsupportedError:
            return True
        if exact and None in map(self._known_of, functions):
            return False
        key = (bound.typed, bound.layout, exact, self._trusted(functions, exact))
        if key in self._known:
            return True
        path = self._path(key)
        waits = self._lock.locked() and not machine_code.possible()
        return path is not None and not waits and path.exists()

    def prepare(self, bound: BoundExpression, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """See `Backend.prepare`."""
        for claim in proof.claims(bound) if exact else ():
            if not self._holds(claim):
                raise UnsupportedError(f"{claim.kind} of {claim.dtype.name} as this NumPy does it")
        return self._prepare(bound, exact, self._trusted(proof.functions(bound), exact))

    def _trusted(self, functions: Sequence[proof.FunctionClaim], exact: bool) -> Any:
        return tuple(claim for claim in functions if not exact or self._holds(claim))

    def _prepare(
        self, bound: BoundExpression, exact: bool, trusted: tuple[proof.FunctionClaim, ...] = ()
    ) -> Callable[[Sequence[Any]], Results]:
        key = (bound.typed, bound.layout, exact, trusted)
        known = self._known.get(key)
        if known is None:
            made = kernel_files.decoded(self._content(key))
            with self._linking:
                known = self._known.get(key)
                if known is None:
                    known = self._linked(key, made)
                    if len(self._known) >= _MOST_KERNELS:
                        del self._known[next(iter(self._known))]  # the oldest one
                    self._known[key] = known
        return self._bound(bound, known)

    def _linked(self, key: Key, made: Made) -> _Linked:
        functions = [*self._status.addresses, self._status.mask]
        for name, dtypes in made.externals:
            loop = ufunc_loops.loop(UFUNCS[name], dtypes)
            if loop is None:
                raise UnsupportedError(f"no loop for {name} of {', '.join(map(str, dtypes))}")
            functions += [loop.function, loop.data]
        name = kernel_files.description(key, self._kind)
        code = self._loaded.get(name)
        if code is None:
            code = self._loaded[name] = self._load(made.code)
        calls = bool(made.externals)
        return _Linked(code, np.array(functions, np.int64), made.scratch, made.doubtful, calls)

    def _bound(self, bound: BoundExpression, linked: _Linked) -> Callable[[Sequence[Any]], Results]:
        nest, status, memory = bound.nest, self._status, self._scratch.address
        inputs = nest.strides[: len(bound.inputs)]
        if linked.calls and any(steps[-1] <= 0 and min(steps) < 0 for steps in inputs):
            # NumPy may turn the axis round, and its loops round by the stride
            raise UnsupportedError("a reversed axis for NumPy's inner loops")
        # NumPy converts a buffer of values at a time, and adds up each buffer by itself
        converted = any(
            bound.typed.converted[number] and kind == "sum" and dtype.kind == "f"
            for number, (_, kind, dtype) in enumerate(bound.typed.outputs)
        )
        part = np.getbufsize() if converted else _WHOLE
        shape = np.array([*nest.shape, bound.row, part], np.int64)
        strides = np.array(nest.strides, np.int64)
        held = (shape.ctypes.data, strides.ctypes.data, linked.functions.ctypes.data)
        dimensions, kept, scratch = len(nest.shape), nest.kept, linked.scratch
        function = linked.code.function
        places = [number for number, _ in bound.inputs]
        scalars = _Scalars([dtype for _, dtype in bound.inputs])
        pointers = _LONG * (len(places) + len(bound.typed.outputs))

        def run(values: Sequence[Any], _held: Any = (shape, strides, linked)) -> Results:
            if converted and np.getbufsize() != part:
                return Results([], set(), True)
            results = bound.allocate()
            # this list keeps the arrays of scalars in memory until the kernel has run
            operands = [
                values[number] if type(values[number]) is np.ndarray
                else scalars(place, values[number])
                for place, number in enumerate(places)
            ]  # fmt: skip
            addresses = pointers(
                *(a if type(a) is int else a.__array_interface__["data"][0] for a in operands),
                *(a.__array_interface__["data"][0] for a in results),
            )
            raised = function(
                ctypes.addressof(addresses), held[0], dimensions, kept, held[1],
                memory(scratch), held[2],
            )  # fmt: skip
            if not raised:
                return Results(bound.finish(results), set())
            names = status.names(raised)
            doubtful = raised >= DOUBT or (linked.doubtful and "invalid" in names)
            return Results(bound.finish(results), names, doubtful)

        return run

    def _holds(self, claim: proof.Claim) -> bool:
        """Whether a claim is true; the answer is kept beside the machine code."""
        known = self._known_of(claim)
        if known is None:
            path = self._proof_path(claim)
            with cache_files.claimed(path):  # workers that need the same proof wait for the first
                known = self._known_of(claim)
                if known is None:
                    trusted = (claim,) if isinstance(claim, proof.FunctionClaim) else ()
                    known = proof.holds(claim, lambda bound: self._prepare(bound, True, trusted))
                    self._proofs[claim] = known
                    cache_files.write(path, b"1" if known else b"0")
        return known

    def _known_of(self, claim: proof.Claim) -> bool | None:
        known = self._proofs.get(claim)
        if known is None:
            content = cache_files.read(self._proof_path(claim))
            if content is not None:
                known = self._proofs[claim] = content == b"1"
        return known

    def _proof_path(self, claim: proof.Claim) -> Path | None:
        text = f"{self._kind} {proof.numpys()} {claim!r}"
        return self._directory and cache_files.path_of(text, self._directory, ".json")

    def _load(self, code: bytes) -> _Code:
        try:
            loaded = machine_code.MachineCode(code, "kernel")
        except machine_code.UnloadableError:
            with self._lock:
                engine = self._compiler.loaded(code)
                return _Code(engine, engine.get_function_address("kernel"))
        return _Code(loaded, loaded.address)

    def _content(self, key: Key) -> bytes:
        """Return the content of a kernel's file, compiling the kernel if there is none."""
        path = self._path(key)
        content = cache_files.read(path)
        if content is None and path is not None and processor.description() is not None:
            # each kind of versions and processor has a process of its own
            address = cache_files.path_of(self._kind, path.parent, ".socket")
            content = compiler_process.ask(address, path, key)
        if content is not None:
            return content
        # workers that need the same kernel wait for the first one to compile it
        with cache_files.claimed(path):
            content = cache_files.read(path)
            if content is None:
                with self._lock:
                    content = self._compiler.made(key)
                cache_files.write(path, content)
        return content


_ALIGNMENT = 64


class Scratch(threading.local):
    """One piece of memory per thread, which grows to the largest request so far."""

    nbytes = -1
    start = 0

    def address(self, nbytes: int) -> int:
        """Return the address of this many bytes, valid until this thread's next request."""
        if self.nbytes < nbytes:
            self._memory = None  # freed before a larger piece is allocated
            self._memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
            start: int = self._memory.__array_interface__["data"][0]
            self.start, self.nbytes = start + -start % _ALIGNMENT, nbytes
        return self.start
