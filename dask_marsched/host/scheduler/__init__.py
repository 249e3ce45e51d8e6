"""Private touches of distributed's scheduler."""
