"""Lets clients register the plugin at their start, and outlive a scheduler that is restarted."""
