"""Directives `marsched-public` and `marsched-protocols`: the Python API, found at build time.

Names come from `dask_marsched.__all__` and from the policies' protocols, so that nothing here has
to follow when modules move.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

#: Classes that users hold in their hands, but get from a function: by the function's annotation.
RETURNED_BY = ("explain", "simulate", "operands", "status")


def public() -> Iterator[str]:
    """Yield reStructuredText for each public name."""
    import dask_marsched

    for name in dask_marsched.__all__:
        thing = getattr(dask_marsched, name)
        if inspect.isclass(thing):
            yield _class(f"dask_marsched.{name}")
        elif callable(thing):
            yield f".. autofunction:: dask_marsched.{name}\n"


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
    import dask_marsched.policies as policies

    for kind in policies.__all__:
        module = getattr(policies, kind)
        for cls in vars(module).values():
            if getattr(cls, "_is_protocol", False) and cls.__module__ == module.__name__:
                yield _class(f"{cls.__module__}.{cls.__name__}", "   :special-members: __call__\n")


def values() -> Iterator[str]:
    """Yield reStructuredText for the classes that policies read and return."""
    import dask_marsched.policies as policies

    for kind, names in {
        "assignment": ("OperandGraph", "WorkerSlot", "Unit"),
        "placement": ("Candidate",),
        "withholding": ("Offer",),
    }.items():
        for name in names:
            cls = getattr(getattr(policies, kind), name)
            yield _class(f"{cls.__module__}.{cls.__name__}")


def _class(path: str, more: str = "") -> str:
    return f".. autoclass:: {path}\n   :members:\n{more}"


def setup(app: Any) -> dict[str, Any]:
    """Register the directives, for pages in reStructuredText and `eval-rst` blocks."""
    from sphinx.util.docutils import SphinxDirective

    def directive(make: Any) -> type[SphinxDirective]:
        class Reference(SphinxDirective):
            def run(self) -> list[Any]:
                return self.parse_text_to_nodes("\n".join(make()))

        return Reference

    for make in (public, returned, protocols, values):
        app.add_directive(f"marsched-{make.__name__}", directive(make))
    return {"parallel_read_safe": True}
