"""Runs on a worker: admission by memory quota, eviction, kernels, metrics for the scheduler."""
