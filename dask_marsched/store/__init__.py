"""Stores chunks outside the heap: shared by the processes of a host, or on disk."""
