"""``dask marsched demo``: three analyses of a Zarr store, with stock Dask and with the plugin.

:mod:`.command` imports the other modules after it has checked for xarray, zarr and matplotlib
(``pip install '.[demo]'``).
"""
