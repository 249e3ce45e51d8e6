"""The scheduler side of outliving a scheduler: what is recorded of it, and how another goes on."""
