"""Compiles kernels to machine code. Importing this loads LLVM's library into the process."""

from __future__ import annotations

import pickle
from typing import Any

import llvmlite.binding as llvm

from dask_marsched.kernels.backend import UnsupportedError
from dask_marsched.kernels.llvm import processor
from dask_marsched.kernels.llvm.kernel import Writer
from dask_marsched.kernels.llvm.kernel_files import Key, Made
from dask_marsched.kernels.llvm.reductions import ReductionWriter


class Compiler:
    """LLVM for this processor, for one thread at a time."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = processor.features(dict(llvm.get_host_cpu_features()))
        if "+avx512vbmi2" in features:  # since Ice Lake, wide vectors hardly lower the clock
            features += ",-prefer-256-bit"
        cpu = llvm.get_host_cpu_name()
        self._machine: Any = llvm.Target.from_default_triple().create_target_machine(
            cpu=cpu, features=features, opt=3, codemodel="jitdefault", jit=True
        )
        self.processor = f"{self._machine.triple} {cpu} {features}"

    def made(self, key: Key) -> bytes:
        """Return the content of a kernel's file: the kernel, or why there is none."""
        try:
            expression, *_ = key
            writer = (ReductionWriter if expression.reduced else Writer)(*key)
            text = writer.write()
        except UnsupportedError as reason:
            return pickle.dumps(reason)
        externals, code = tuple(writer.externals), self._compile(text)
        return pickle.dumps(Made(externals, writer.scratch, writer.doubtful(), code))

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
        """Return an engine of LLVM that holds machine code in memory."""
        # an engine owns its machine
        machine = llvm.Target.from_default_triple().create_target_machine(
            codemodel="jitdefault", jit=True
        )
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        return engine
