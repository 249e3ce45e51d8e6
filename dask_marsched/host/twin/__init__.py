"""Private touches of distributed that the digital twin needs."""
