"""``dask marsched demo``: three analyses of a Zarr store, with stock Dask and with the plugin.

The command is in :mod:`.command`; it imports the others only once it knows that xarray, zarr and
matplotlib (``pip install 'dask-marsched[demo]'``) are there.
"""
