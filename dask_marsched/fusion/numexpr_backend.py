"""numexpr: its virtual machine on one thread, for floats and what it computes as NumPy does."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dask_marsched.fusion import float_status
from dask_marsched.fusion.backend import Results, UnsupportedError
from dask_marsched.fusion.expression import TypedExpression
from dask_marsched.fusion.setting import Setting

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
        If numexpr is not installed, or there is no way to the floating-point flags.
    """

    name = "numexpr"

    def at_hand(self, setting: Setting, exact: bool) -> bool:
        """See `Backend.at_hand`."""
        return True

    def __init__(self) -> None:
        import numexpr

        self._numexpr: Any = numexpr
        status = float_status.functions()
        if status is None:
            raise ImportError("the floating-point flags of this processor are not known")
        self._status = status
        #: numexpr has one pool of threads for the process; on one thread it uses the caller's.
        self._lock = threading.Lock()

    def prepare(self, setting: Setting, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """Return a function that evaluates an expression in its setting.

        Raises
        ------
        UnsupportedError
            If numexpr does not compute it as NumPy does.
        """
        if exact or setting.typed.reduced or len(setting.typed.outputs) > 1:
            raise UnsupportedError("reductions" if not exact else "not exact")
        if setting.order != tuple(range(len(setting.shape))):
            raise UnsupportedError("the order of axes")
        text = _text(setting.typed)
        # the exponents of powers that are multiplied are not in it
        used = sorted({int(k) for k in re.findall(r"x(\d+)", text)})
        kind = self._numexpr.necompiler.getType
        arguments = [(f"x{k}", kind(np.empty(0, setting.inputs[k][1]))) for k in used]
        function = self._numexpr.NumExpr(text, signature=arguments)
        status, threads = self._status, self._numexpr

        def run(values: Sequence[Any]) -> Results:
            operands, (result,) = setting.operands(values), setting.allocate()
            with self._lock:
                before = threads.set_num_threads(1)
                try:
                    status.clear()
                    given = (operands[k] for k in used)
                    function(*given, out=result, order="K", casting="no", ex_uses_vml=False)
                    raised = status.raised()
                finally:
                    threads.set_num_threads(before)
            return Results([result], raised)

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
