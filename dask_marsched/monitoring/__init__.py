"""Watches a cluster for users: operand states, progress, recordings, metrics of workers."""
