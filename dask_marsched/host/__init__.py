"""Touches private names of Dask and distributed, which no other package may."""
