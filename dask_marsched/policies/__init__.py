"""Decides scheduling by pure functions and objects, chosen by name or supplied by users."""
