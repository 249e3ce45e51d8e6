"""Evaluates elementwise chains and the reductions after them in one pass: fused kernels."""
