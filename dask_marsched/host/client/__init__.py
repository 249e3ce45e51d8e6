"""Clients: the plugin at their start, and the way back to a scheduler that was restarted."""
