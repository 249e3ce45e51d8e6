"""The simulated cluster: virtual time, hardware, workers, faults."""
