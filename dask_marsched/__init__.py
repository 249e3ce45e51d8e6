"""Temporary: the public names come as soon as scheduler_plugin.py is there."""

from dask_marsched.config import register_defaults as _register_defaults

_register_defaults()
__version__ = "0.1.0"
