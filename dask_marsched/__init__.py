"""The scheduling of the Mars tensor engine for Dask: a drop-in scheduler plugin.

Importing this package registers its configuration defaults with Dask and changes nothing else.
As a module for ``--preload`` it offers ``dask_setup`` and ``dask_teardown``.
"""

from dask_marsched.config import register_defaults as _register_defaults

_register_defaults()

from dask_marsched.client import Client  # noqa: E402
from dask_marsched.policies.registry import register as register_policy  # noqa: E402
from dask_marsched.preload import dask_setup, dask_teardown  # noqa: E402
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin  # noqa: E402
from dask_marsched.status import status  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "Client",
    "MarsSchedulerPlugin",
    "__version__",
    "dask_setup",
    "dask_teardown",
    "register_policy",
    "status",
]
