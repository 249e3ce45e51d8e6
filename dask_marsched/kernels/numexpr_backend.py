"""numexpr: its virtual machine on one thread, for floats and what it computes as NumPy does.

Its threads are the process's, and whoever changes their number waits for all of them, with the
interpreter's lock held: if one of them runs an expression of somebody else's, for ever. So the
number is looked at, and never set.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dask_marsched.kernels.backend import Results, UnsupportedError
from dask_marsched.kernels.bound_expression import Setting
from dask_marsched.kernels.expression import TypedExpression
from dask_marsched.kernels.llvm import float_status

_INFIX = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_CALLED = {
    name: name
    for name in ("sqrt", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh",
                 "exp", "expm1", "log", "log1p")
} | {"absolute": "abs"}  # fmt: skip
_FLOATS = (np.dtype("f4"), np.dtype("f8"))


class NumexprBackend:
    """Expressions that numexpr evaluates.

    Raises
    ------
    ImportError
        If numexpr is not installed or not of use here (it has more than one thread, or Intel's
        VML), or there is no way to the floating-point flags.
    """

    name = "numexpr"

    def at_hand(self, setting: Setting, exact: bool) -> bool:
        """See `Backend.at_hand`."""
        return True

    def __init__(self) -> None:
        import numexpr

        self._numexpr: Any = numexpr
        if numexpr.use_vml:
            raise ImportError("numexpr with VML has threads of VML's, and its results")
        several = self._several()
        if several is not None:
            raise ImportError(f"{several}; NUMEXPR_NUM_THREADS=1 when the worker starts")
        status = float_status.functions()
        if status is None:
            raise ImportError("the floating-point flags of this processor are not known")
        self._status = status

    def _several(self) -> str | None:
        """Return why numexpr cannot be used now; None if it runs in the thread that calls it."""
        threads = self._numexpr.get_num_threads()
        return None if threads == 1 else f"numexpr runs with {threads} threads"

    def prepare(self, setting: Setting, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """Return a function that evaluates an expression in its setting.

        Raises
        ------
        UnsupportedError
            If numexpr does not compute it as NumPy does, or runs with several threads by now.
        """
        several = self._several()
        if several is not None:
            raise UnsupportedError(several)
        if exact or setting.typed.reduced or len(setting.typed.outputs) > 1:
            raise UnsupportedError("reductions" if not exact else "not exact")
        if setting.order != tuple(range(len(setting.shape))):
            raise UnsupportedError("the order of axes")
        text = _text(setting.typed)
        # the exponents of powers that are multiplied are not in it
        used = sorted({int(k) for k in re.findall(r"x(\d+)", text)})
        kind = self._numexpr.necompiler.getType
        arguments = [(f"x{k}", kind(np.empty(0, setting.inputs[k][1]))) for k in used]
        made = threading.local()  # what numexpr makes of an expression holds its operands
        status = self._status

        def function() -> Any:
            if not hasattr(made, "function"):
                made.function = self._numexpr.NumExpr(text, signature=arguments)
            return made.function

        function()

        def run(values: Sequence[Any]) -> Results:
            several = self._several()
            if several is not None:
                raise RuntimeError(several)
            operands, (result,) = setting.operands(values), setting.allocate()
            call, given = function(), [operands[k] for k in used]
            status.clear()
            call(*given, out=result, order="K", casting="no", ex_uses_vml=False)
            raised = status.raised()
            # the flags of other threads, should it have had some, are not known
            return Results([result], raised, doubtful=self._several() is not None)

        return run


def _text(expression: TypedExpression) -> str:
    found: list[str] = []
    inputs = 0
    for node in expression.nodes:
        if node.dtype not in _FLOATS or node.dtype != expression.nodes[0].dtype:
            raise UnsupportedError(f"{node.op} of {node.dtype.name}")
        args = [found[arg] for arg in node.args]
        if node.op == "input":
            found.append(f"x{inputs}")
            inputs += 1
        elif node.op in _INFIX:
            found.append(f"({args[0]} {_INFIX[node.op]} {args[1]})")
        elif node.op == "negative":
            found.append(f"(-{args[0]})")
        elif node.op == "square" or (node.op == "power" and node.param == 2):
            found.append(f"({args[0]} * {args[0]})")
        elif node.op in _CALLED:
            found.append(f"{_CALLED[node.op]}({args[0]})")
        else:
            raise UnsupportedError(node.op)
    return found[expression.outputs[0][0]]
