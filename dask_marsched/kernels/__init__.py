"""Fused kernels: elementwise chains and the reductions after them, evaluated in one pass."""
