"""Pages on the scheduler's own dashboard: plan, operands, memory, transfers, kernels, faults."""
