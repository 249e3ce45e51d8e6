"""Private attributes of dask and distributed that simulations need."""
