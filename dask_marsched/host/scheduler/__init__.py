"""Changes a running scheduler: what decides there, and what happens when workers die."""
