"""Catches and counts exceptions of the plugin's hooks, so that Dask decides in their place."""
