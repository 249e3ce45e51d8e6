"""Simulates a cluster: virtual time, hardware, workers, faults."""
