"""Determines the costs of tasks: seconds and bytes, recorded or derived."""
