"""Private touches of distributed's worker and nanny."""
