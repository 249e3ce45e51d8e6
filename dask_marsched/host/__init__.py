"""Private touches of Dask and distributed: no other package may use their private names."""
