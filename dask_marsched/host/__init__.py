"""The only code that touches private attributes of distributed or dask."""
