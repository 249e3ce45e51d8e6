"""The pages that a browser must be able to open."""

#: What each of them shows; as in ``/mars-plan``, ``/individual-mars-plan`` and "Mars Plan".
PAGES = ("plan", "operands", "memory", "transfers", "kernels", "faults")
