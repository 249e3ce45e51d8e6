"""Defines pure data structures: no distributed, no asyncio, no clock, no configuration."""
