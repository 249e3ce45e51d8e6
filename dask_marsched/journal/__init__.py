"""Keeps the journal: what a scheduler must know to go on after it died, in small keyed tables.

A store keeps the tables (`store.py`), in a directory or on a database server (`places.py`).
`JournalWriter` (`writer.py`) writes beside the event loop.
"""
