"""Adds pages to the scheduler's dashboard: plan, operands, memory, transfers, kernels, faults."""
