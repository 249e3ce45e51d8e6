"""Compiled kernels: LLVM turns the code of a kernel into machine code, which is kept on disk.

numba's compiler library, llvmlite, is used without numba's own front end: that takes 0.5 to 1.5 s
of processor time for a kernel, most of it with the interpreter's lock held; LLVM takes 0.1 s,
without the lock.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.fusion import files, float_status, proof, ufunc_loops
from dask_marsched.fusion.backend import Results, UnsupportedError
from dask_marsched.fusion.operations import UFUNCS
from dask_marsched.fusion.scratch import Scratch
from dask_marsched.fusion.setting import Setting, as_array

_LONG = ctypes.c_int64
_FUNCTION = ctypes.CFUNCTYPE(_LONG, *[_LONG] * 7)
#: More elements than any row has.
_WHOLE = 1 << 62
#: Kernels that are remembered though nobody evaluates by them; 60 KiB each.
_MOST_KERNELS = 256


class _Code:
    """A kernel's function, and the engine that frees its machine code when it goes."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.function = _FUNCTION(engine.get_function_address("kernel"))


class _Linked(NamedTuple):
    """A kernel's code, addresses of the functions that it calls, and as `Kernel` has them."""

    code: _Code
    functions: Any
    scratch: int
    doubtful: frozenset[str]
    doubt: int


class _Scalars:
    """Scalars in memory: those of an expression are nearly always the same.

    Parameters
    ----------
    dtypes
        In which they are read, by place.
    """

    def __init__(self, dtypes: Sequence[np.dtype[Any]]) -> None:
        self._dtypes = dtypes
        #: By place: the value, its type, its address, and the array at that address. Never changed,
        #: but replaced: other threads may read it.
        self._known: list[tuple[Any, Any, int, Any] | None] = [None] * len(dtypes)

    def __call__(self, place: int, value: Any) -> Any:
        """Return the address of a scalar, or an array that holds it."""
        known = self._known[place]
        if known is None:
            array = as_array(value, self._dtypes[place])
            address = array.__array_interface__["data"][0]
            self._known[place] = (value, type(value), address, array)
            return array
        # -0.0 is equal to 0.0 (in complex numbers, too), and NaN to nothing
        if known[0] == value and type(value) is known[1] and value and known[1] is not complex:
            return known[2]
        return as_array(value, self._dtypes[place])


class LLVMBackend:
    """Kernels that LLVM compiles.

    Parameters
    ----------
    directory
        Where machine code is kept; None to keep none.

    Raises
    ------
    ImportError
        If llvmlite is not installed, or there is no way to the floating-point flags.
    """

    name = "llvm"

    def __init__(self, directory: Path | None) -> None:
        import llvmlite.binding as llvm

        status = float_status.find()
        if status is None:
            raise ImportError("the floating-point flags of this processor are not known")
        self._llvm: Any = llvm
        self._status = status
        self._lock = threading.Lock()
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features().flatten()
        cpu = llvm.get_host_cpu_name()
        self._machine: Any = llvm.Target.from_default_triple().create_target_machine(
            cpu=cpu, features=features, opt=3, codemodel="jitdefault", jit=True
        )
        self._kind = f"{llvm.llvm_version_info} {self._machine.triple} {cpu} {features}"
        self._directory = directory
        self._scratch = Scratch()
        #: The latest kernels, for new shapes of the same arrays.
        self._known: dict[Any, _Linked] = {}
        #: By a digest of its text, code that is remembered or that somebody evaluates by.
        self._loaded: weakref.WeakValueDictionary[str, _Code] = weakref.WeakValueDictionary()
        #: Whether reductions are NumPy's.
        self._proofs: dict[proof.Claim, bool] = {}
        #: Kernels as text, of which it was asked whether they have been compiled.
        self._written: dict[Any, Any] = {}

    def at_hand(self, setting: Setting, exact: bool) -> bool:
        """See `Backend.at_hand`.

        While something else is compiled nothing is: LLVM's library does one thing at a time.
        """
        key = (setting.typed, setting.layout, exact)
        if key in self._known:
            return True
        try:
            if exact and not all(map(self._known_of, proof.claims(setting))):
                return False
        except UnsupportedError:
            return True
        if self._directory is None or not self._lock.acquire(blocking=False):
            return False
        try:
            made = self._written.get(key)
            if made is None:
                made = self._write(setting, exact)
                _remember(self._written, key, made)
            return self._path(made.text).exists()
        except UnsupportedError:
            return True  # it is told at once
        finally:
            self._lock.release()

    def prepare(self, setting: Setting, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """Return a function that evaluates an expression in its setting.

        Raises
        ------
        UnsupportedError
            If there is no kernel for it, or it reduces in another order than NumPy has to.
        """
        for claim in proof.claims(setting) if exact else ():
            if not self._holds(claim):
                raise UnsupportedError(f"{claim.kind} of {claim.dtype.name} as this NumPy does it")
        return self._prepare(setting, exact)

    def _prepare(self, setting: Setting, exact: bool) -> Callable[[Sequence[Any]], Results]:
        key = (setting.typed, setting.layout, exact)
        known = self._known.get(key)
        if known is None:
            with self._lock:
                known = self._known.get(key)
                if known is None:
                    made = self._written.pop(key, None) or self._write(setting, exact)
                    known = self._linked(made)
                    _remember(self._known, key, known)
        return self._bound(setting, known)

    def _write(self, setting: Setting, exact: bool) -> Any:
        from dask_marsched.fusion.llvm_kernels import kernel

        return kernel(setting.typed, setting.layout, exact)

    def _linked(self, made: Any) -> _Linked:
        functions = [self._status.clear, self._status.test, self._status.mask]
        for name, dtypes in made.externals:
            loop = ufunc_loops.loop(UFUNCS[name], dtypes)
            if loop is None:
                raise UnsupportedError(f"no loop for {name} of {', '.join(map(str, dtypes))}")
            functions += [loop.function, loop.data]
        digest = self._digest(made.text)
        code = self._loaded.get(digest)
        if code is None:
            code = self._loaded[digest] = self._load(made.text)
        loops = np.array(functions, np.int64)
        return _Linked(code, loops, made.scratch, made.doubtful, made.doubt)

    def _bound(self, setting: Setting, linked: _Linked) -> Callable[[Sequence[Any]], Results]:
        nest, status, memory = setting.nest, self._status, self._scratch.address
        # the parts in which NumPy converts what it reduces
        converted = any(
            setting.typed.converted[number] and kind == "sum" and dtype.kind == "f"
            for number, (_, kind, dtype) in enumerate(setting.typed.outputs)
        )
        part = np.getbufsize() if converted else _WHOLE
        shape = np.array([*nest.shape, setting.row, part], np.int64)
        strides = np.array(nest.strides, np.int64)
        held = (shape.ctypes.data, strides.ctypes.data, linked.functions.ctypes.data)
        dimensions, kept, scratch = len(nest.shape), nest.kept, linked.scratch
        function = linked.code.function
        places = [number for number, _ in setting.inputs]
        scalars = _Scalars([dtype for _, dtype in setting.inputs])
        pointers = _LONG * (len(places) + len(setting.typed.outputs))

        def run(values: Sequence[Any], _held: Any = (shape, strides, linked)) -> Results:
            if converted and np.getbufsize() != part:
                return Results([], set(), True)
            results = setting.allocate()
            # what a scalar has become stays where it is until the kernel has run
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
                return Results(setting.finish(results), set())
            names = status.names(raised)
            doubtful = raised >= linked.doubt or not names.isdisjoint(linked.doubtful)
            return Results(setting.finish(results), names, doubtful)

        return run

    # -- whether it is what NumPy does ------------------------------------------------------

    def _holds(self, claim: proof.Claim) -> bool:
        """Whether a reduction is NumPy's; what was found out is kept beside the machine code."""
        known = self._known_of(claim)
        if known is None:
            known = proof.holds(claim, lambda setting: self._prepare(setting, True))
            self._proofs[claim] = known
            if self._directory is not None:
                files.write(self._proof_path(claim), b"1" if known else b"0")
        return known

    def _known_of(self, claim: proof.Claim) -> bool | None:
        known = self._proofs.get(claim)
        if known is None and self._directory is not None:
            content = files.read(self._proof_path(claim))
            if content is not None:
                known = self._proofs[claim] = content == b"1"
        return known

    def _proof_path(self, claim: proof.Claim) -> Path:
        assert self._directory is not None
        return self._directory / f"{self._digest(f'{proof.numpys()} {claim!r}')}.json"

    # -- machine code ----------------------------------------------------------------------

    def _load(self, text: str) -> _Code:
        llvm = self._llvm
        code = self._compile(text) if self._directory is None else self._kept(text)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._machine_copy())
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return _Code(engine)

    def _digest(self, text: str) -> str:
        return hashlib.sha256(f"{self._kind}\n{text}".encode()).hexdigest()[:40]

    def _path(self, text: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{self._digest(text)}.o"

    def _kept(self, text: str) -> bytes:
        """Return machine code from disk, which is put there first where it is missing.

        Workers that need the same kernel at the same time wait for the first of them.
        """
        path = self._path(text)
        code = files.read(path)
        if code is not None:
            return code
        with files.claimed(path):
            code = files.read(path)
            if code is None:
                code = self._compile(text)
                files.write(path, code)
        return code

    def _machine_copy(self) -> Any:
        # An engine takes possession of its machine.
        llvm = self._llvm
        return llvm.Target.from_default_triple().create_target_machine(
            codemodel="jitdefault", jit=True
        )

    def _compile(self, text: str) -> bytes:
        llvm = self._llvm
        module = llvm.parse_assembly(text)
        module.triple = self._machine.triple
        module.data_layout = str(self._machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.slp_vectorization = False
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        code: bytes = self._machine.emit_object(module)
        return code


def _remember(where: dict[Any, Any], key: Any, value: Any) -> None:
    """Add something, in the place of the eldest where it is too much."""
    if len(where) >= _MOST_KERNELS:
        del where[next(iter(where))]
    where[key] = value
