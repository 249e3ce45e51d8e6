"""Compiles expressions with LLVM in another process, and loads the kernels."""
