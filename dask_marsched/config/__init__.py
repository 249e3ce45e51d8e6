"""Reads and checks the options below ``marsched`` in Dask's configuration."""

from dask_marsched.config.settings import NAMESPACE as NAMESPACE
from dask_marsched.config.settings import OPTIONS as OPTIONS
from dask_marsched.config.settings import WORKER_PARTS as WORKER_PARTS
from dask_marsched.config.settings import Settings as Settings
from dask_marsched.config.settings import changed_options as changed_options
from dask_marsched.config.settings import check as check
from dask_marsched.config.settings import register_defaults as register_defaults
