"""Whole programs of Dask's collections and futures, as users write them."""
