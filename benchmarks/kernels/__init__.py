"""Benchmarks of fused kernels."""
