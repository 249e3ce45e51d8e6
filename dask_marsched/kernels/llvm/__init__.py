"""Kernels compiled by LLVM: code generation, compilation in another process, loading."""
