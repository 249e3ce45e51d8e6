"""Benchmarks of the scheduler's own time."""
