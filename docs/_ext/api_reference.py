"""Directives for the reference: the Python API and the commands, found at build time.

Names come from `dask_marsched.__all__`, from the policies' protocols and from `dask marsched`, so
that nothing here has to follow when modules move.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
import distributed
from distributed.diagnostics.plugin import SchedulerPlugin

#: Classes that users hold in their hands, but get from a function: by the function's annotation.
RETURNED_BY = ("explain", "simulate", "operands", "status")


def public() -> Iterator[str]:
    """Yield reStructuredText for each public name, a table of all first."""
    import dask_marsched

    things = {name: getattr(dask_marsched, name) for name in dask_marsched.__all__}
    callables = {name: thing for name, thing in things.items() if callable(thing)}
    yield ".. autosummary::\n"
    yield from (f"   {name}" for name in callables)
    yield ""
    for name, thing in callables.items():
        if not inspect.isclass(thing):
            yield f".. autofunction:: dask_marsched.{name}\n"
        elif issubclass(thing, (distributed.Client, SchedulerPlugin)):
            # Their other methods are those of distributed, or hooks that distributed calls.
            yield f".. autoclass:: dask_marsched.{name}\n"
        else:
            yield _class(f"dask_marsched.{name}")


def returned() -> Iterator[str]:
    """Yield reStructuredText for each class that public functions return."""
    import dask_marsched

    for name in RETURNED_BY:
        function = getattr(dask_marsched, name)
        returns = re.search(r"Returns\n *-+\n *(\w+)", function.__doc__)
        module = importlib.import_module(function.__module__)
        cls = getattr(module, returns[1])
        yield _class(f"{cls.__module__}.{cls.__name__}")


def protocols() -> Iterator[str]:
    """Yield reStructuredText for each protocol of a policy, and for what it reads and returns."""
    from dask_marsched.policies import registry

    for kind in registry.KINDS:
        module = importlib.import_module(f"dask_marsched.policies.{kind}")
        for cls in vars(module).values():
            if getattr(cls, "_is_protocol", False) and cls.__module__ == module.__name__:
                yield _class(f"{cls.__module__}.{cls.__name__}")


def values() -> Iterator[str]:
    """Yield reStructuredText for the classes that policies read and return."""
    for kind, names in {
        "assignment": ("OperandGraph", "WorkerSlot", "Unit"),
        "placement": ("Candidate",),
        "withholding": ("Offer",),
    }.items():
        for name in names:
            cls = getattr(importlib.import_module(f"dask_marsched.policies.{kind}"), name)
            yield _class(f"{cls.__module__}.{cls.__name__}")


def commands() -> Iterator[str]:
    """Yield reStructuredText for each command of `dask marsched`."""
    from dask_marsched.cli import marsched

    context = click.Context(marsched)
    for name in marsched.list_commands(context):
        function = marsched.get_command(context, name).callback
        yield f".. click:: {function.__module__}:{function.__name__}"
        yield f"   :prog: dask marsched {name}\n"


def _class(path: str) -> str:
    return f".. autoclass:: {path}\n   :members:\n"


def setup(app: Any) -> dict[str, Any]:
    """Register the directives, for pages in reStructuredText and `eval-rst` blocks."""
    from sphinx.util.docutils import SphinxDirective

    def directive(make: Any) -> type[SphinxDirective]:
        class Reference(SphinxDirective):
            def run(self) -> list[Any]:
                self.env.note_dependency(__file__)
                self.env.note_reread()  # it follows the package, which is no dependency
                return self.parse_text_to_nodes("\n".join(make()))

        return Reference

    for make in (public, returned, protocols, values, commands):
        app.add_directive(f"marsched-{make.__name__}", directive(make))
    return {"parallel_read_safe": True}
