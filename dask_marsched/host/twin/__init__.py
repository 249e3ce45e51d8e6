"""Runs distributed's own scheduler, shuffles and state machines of workers in simulations."""
