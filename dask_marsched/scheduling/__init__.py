"""Runs on the scheduler: plans graphs, dispatches operands, deals with lost workers."""
