"""Brings the scheduling of the Mars tensor engine to Dask, as a drop-in scheduler plugin.

Importing this package registers its configuration defaults with Dask and changes nothing else.
``--preload dask_marsched`` calls `dask_setup` and `dask_teardown`.

``docs/architecture.md`` says where to look in the source.
"""

import importlib as _importlib
import typing as _typing

from dask_marsched.config import register_defaults as _register_defaults

_register_defaults()

from dask_marsched.installation import __version__  # noqa: E402  # after the defaults

# Not on first use: Python would then put the module of this name in its place.
from dask_marsched.status import status  # noqa: E402  # after the defaults

if _typing.TYPE_CHECKING:
    from dask_marsched.cancellation import cancel
    from dask_marsched.client import Client, resume
    from dask_marsched.monitoring.operands import operands
    from dask_marsched.monitoring.progress import progress
    from dask_marsched.policies.registry import register as register_policy
    from dask_marsched.preload import dask_setup, dask_teardown
    from dask_marsched.report.context import performance_report
    from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
    from dask_marsched.simulation.costs.recording import Recording, record
    from dask_marsched.simulation.explain.explain import explain
    from dask_marsched.simulation.graph_file import load_graph, save_graph
    from dask_marsched.simulation.simulate import simulate

__all__ = [
    "Client",
    "MarsSchedulerPlugin",
    "Recording",
    "__version__",
    "cancel",
    "dask_setup",
    "dask_teardown",
    "explain",
    "load_graph",
    "operands",
    "performance_report",
    "progress",
    "record",
    "register_policy",
    "resume",
    "save_graph",
    "simulate",
    "status",
]

# Imported on first use: nannies and commands need no dask.array, schedulers no digital twin, and
# workers, which import this package to find their plugin, none of these.
_LAZY = {
    "Client": "dask_marsched.client",
    "MarsSchedulerPlugin": "dask_marsched.scheduler_plugin",
    "Recording": "dask_marsched.simulation.costs.recording",
    "cancel": "dask_marsched.cancellation",
    "dask_setup": "dask_marsched.preload",
    "dask_teardown": "dask_marsched.preload",
    "operands": "dask_marsched.monitoring.operands",
    "performance_report": "dask_marsched.report.context",
    "record": "dask_marsched.simulation.costs.recording",
    "progress": "dask_marsched.monitoring.progress",
    "explain": "dask_marsched.simulation.explain.explain",
    "load_graph": "dask_marsched.simulation",
    "resume": "dask_marsched.client",
    "register_policy": "dask_marsched.policies.registry:register",
    "save_graph": "dask_marsched.simulation",
    "simulate": "dask_marsched.simulation",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    return getattr(_importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
