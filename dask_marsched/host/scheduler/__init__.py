"""Private touches of the scheduler: what decides there, and what happens when workers die."""
