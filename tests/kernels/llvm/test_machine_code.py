"""The loader of machine code gives the same results as LLVM's own loader, or refuses a file."""

import ctypes
import gc
import struct
import sys
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from dask_marsched.kernels import proof
from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.bound_expression import bind, signature
from dask_marsched.kernels.expression import NotUnderstoodError
from dask_marsched.kernels.llvm import machine_code, processor
from dask_marsched.kernels.llvm.machine_code import MachineCode, UnloadableError
from tests.kernels.expressions import cases

llvm_backend = pytest.importorskip("dask_marsched.kernels.llvm.backend")
pytestmark = pytest.mark.skipif(
    not machine_code.possible(), reason="LLVM's own loader is used on this machine"
)
OURS, LLVMS = llvm_backend.LLVMBackend(None), llvm_backend.LLVMBackend(None)

#: A function that clears so many bytes and returns a constant.
CLEARS = """
@constant = private constant double 1.5
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define i64 @kernel(i64 %where, i64 %count) {
  %pointer = inttoptr i64 %where to ptr
  call void @llvm.memset.p0.i64(ptr %pointer, i8 0, i64 %count, i1 false)
  %value = load volatile double, ptr @constant
  %rounded = fptosi double %value to i64
  ret i64 %rounded
}
"""
CALLS = """
declare i32 @puts(ptr)
define i64 @kernel(i64 %where) {
  %pointer = inttoptr i64 %where to ptr
  %done = call i32 @puts(ptr %pointer)
  ret i64 0
}
"""
COUNTS = """
@counter = internal global i64 1
define i64 @kernel() {
  %now = load i64, ptr @counter
  %next = add i64 %now, 1
  store i64 %next, ptr @counter
  ret i64 %now
}
"""


def compiled(text):
    return OURS._compiler._compile(text)


@pytest.mark.extended
@settings(max_examples=40, deadline=None, derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(case=cases())
def test_random_kernels_give_the_same_results_as_by_llvms_loader(case):
    expression, values = case
    with pytest.MonkeyPatch.context() as patch:
        try:
            found = bind(expression, signature(values))
            ours = OURS.prepare(found, False)
            patch.setattr(machine_code, "possible", lambda: False)
            llvms = LLVMS.prepare(found, False)
        except (NotUnderstoodError, UnsupportedError):
            assume(False)
    key = (found.typed, found.layout, False, tuple(proof.functions(found)))
    assert isinstance(OURS._known[key].code.owner, MachineCode)
    assert not isinstance(LLVMS._known[key].code.owner, MachineCode)
    try:
        got, wanted = ours(values), llvms(values)
    except OverflowError:
        assume(False)
    assert (got.raised, got.doubtful) == (wanted.raised, wanted.doubtful)
    for one, other in zip(got.values, wanted.values, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_functions_of_the_c_library_and_constants_are_found():
    code = MachineCode(compiled(CLEARS), "kernel")
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(code.address)
    values = np.ones(1000)
    assert function(values.ctypes.data, 8 * 999) == 1
    assert values.tolist() == [0.0] * 999 + [1.0]


@pytest.mark.parametrize(("text", "why"), [(CALLS, "symbol 'puts'"), (COUNTS, "variables")])
def test_unknown_symbols_and_variables_are_refused(text, why):
    with pytest.raises(UnloadableError, match=why):
        MachineCode(compiled(text), "kernel")


def test_damaged_files_are_refused():
    content = compiled(CLEARS)
    MachineCode(content, "kernel")
    for length in range(len(content)):  # the last bytes are the table of sections
        with pytest.raises(UnloadableError):
            MachineCode(content[:length], "kernel")
    with pytest.raises(UnloadableError, match="no function"):
        MachineCode(content, "other")
    other = bytearray(content)
    struct.pack_into("<H", other, 18, 183)  # for another processor
    with pytest.raises(UnloadableError, match="x86-64"):
        MachineCode(bytes(other), "kernel")


def test_an_unknown_relocation_is_refused():
    content = compiled(CLEARS)
    found = machine_code._Object(content)
    (table,) = (s for s in found.sections if s.kind == 4 and found.sections[s.info].flags & 4)
    other = bytearray(content)
    struct.pack_into("<I", other, table.offset + 8, 42)
    with pytest.raises(UnloadableError, match="relocation 42"):
        MachineCode(bytes(other), "kernel")


@pytest.mark.extended
def test_memory_is_freed_and_never_writable_and_executable():
    code = MachineCode(compiled(CLEARS), "kernel")

    def permissions(address):
        with open("/proc/self/maps") as maps:
            for line in maps:
                first, last = (int(part, 16) for part in line.split()[0].split("-"))
                if first <= address < last:
                    return line.split()[1]
        return None

    address = code.address
    assert permissions(address) == "r-xp"
    gone = weakref.ref(code)
    del code
    gc.collect()
    assert gone() is None
    assert permissions(address) != "r-xp"


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what its processor has")
def test_code_uses_only_features_that_linux_names(monkeypatch):
    named = processor._fields()
    monkeypatch.setattr(processor, "_fields", lambda: {**named, "flags": "sse2 lm"})
    found = processor.features({"avx2": True, "sse2": True, "64bit": True, "avx512f": False})
    assert found == "+64bit,-avx2,-avx512f,+sse2"


def test_a_processor_has_the_features_of_all_its_cores(monkeypatch, tmp_path):
    text = "processor : {n}\nvendor_id : X\nmodel : 1\nflags : lm {flags}\ncpu MHz : {n}\n"
    cores = [text.format(n=n, flags=flags) for n, flags in enumerate(("avx sse", "sse avx fma"))]
    description = tmp_path / "cpuinfo"
    description.write_text("\n".join(cores))
    monkeypatch.setattr(processor, "_DESCRIPTION", description)
    assert processor._fields.__wrapped__() == {
        "vendor_id": "X",
        "model": "1",
        "flags": "avx lm sse",
    }
    description.write_text("processor : 0\n")
    assert processor._fields.__wrapped__() is None
