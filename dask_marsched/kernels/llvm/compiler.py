"""Turns the code of kernels into machine code. Whoever imports this carries LLVM's library."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.llvm import kernel_files, processor
from dask_marsched.kernels.llvm.kernel import kernel
from dask_marsched.kernels.llvm.kernel_files import Key, Made


class Compiler:
    """LLVM for this processor. For one thread at a time.

    Attributes
    ----------
    processor
        What machine code depends on, as LLVM finds it.
    """

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = processor.features(dict(llvm.get_host_cpu_features()))
        cpu = llvm.get_host_cpu_name()
        self._machine: Any = llvm.Target.from_default_triple().create_target_machine(
            cpu=cpu, features=features, opt=3, codemodel="jitdefault", jit=True
        )
        self.processor = f"{self._machine.triple} {cpu} {features}"

    def made(self, key: Key) -> bytes:
        """Return a compiled kernel, or that there is none, as `kernel_files` keeps it."""
        try:
            found = kernel(*key)
        except UnsupportedError as reason:
            return kernel_files.refusal(str(reason))
        code = self._compile(found.text)
        externals = tuple((name, dtypes) for name, dtypes in found.externals)
        return kernel_files.encoded(Made(externals, found.scratch, found.doubtful, code))

    def _compile(self, text: str) -> bytes:
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

    def loaded(self, code: bytes) -> Any:
        """Return an engine that holds machine code in memory."""
        # an engine takes possession of its machine
        machine = llvm.Target.from_default_triple().create_target_machine(
            codemodel="jitdefault", jit=True
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return engine
