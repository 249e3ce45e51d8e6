"""Evaluates float arithmetic with numexpr on workers that cannot compile kernels.

Its arithmetic is NumPy's to the last bit; its functions, such as ``exp``, are not and were slower.
On one thread it took 0.83 to 1.16 of NumPy's time for chunks of 64 MiB of float64, and 1.2 to 4
times as long for chunks of 1 MiB, where the trial keeps NumPy.

This module checks the number of numexpr's threads and never sets it: that waits for every thread
with the interpreter's lock held, for ever if one of them evaluates for somebody else.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dask_marsched.kernels.backend import Results, UnsupportedError
from dask_marsched.kernels.bound_expression import BoundExpression
from dask_marsched.kernels.expression import TypedExpression
from dask_marsched.kernels.llvm.float_status import FloatStatus

_FORMS = {
    "add": "({} + {})", "subtract": "({} - {})", "multiply": "({} * {})", "divide": "({} / {})",
    "negative": "(-{})", "absolute": "abs({})", "sqrt": "sqrt({})", "square": "({0} * {0})",
}  # fmt: skip
_FLOATS = (np.dtype("f4"), np.dtype("f8"))


class NumexprBackend:
    """Expressions that numexpr evaluates.

    Raises ImportError if numexpr is missing, runs several threads or is built with Intel's VML, or
    if the floating-point flags of this processor are not known.
    """

    name = "numexpr"

    def __init__(self) -> None:
        import numexpr

        self._numexpr: Any = numexpr
        if numexpr.use_vml:
            raise ImportError("numexpr with VML has threads of VML's, and its results")
        several = self._several()
        if several is not None:
            raise ImportError(f"{several}; NUMEXPR_NUM_THREADS=1 when the worker starts")
        self._status = FloatStatus()

    def _several(self) -> str | None:
        """Return why numexpr cannot be used now; None if it runs in the calling thread."""
        threads = self._numexpr.get_num_threads()
        return None if threads == 1 else f"numexpr runs with {threads} threads"

    def prepares_quickly(self, bound: BoundExpression, exact: bool) -> bool:
        """See `Backend.prepares_quickly`."""
        return True

    def prepare(self, bound: BoundExpression, exact: bool) -> Callable[[Sequence[Any]], Results]:
        """See `Backend.prepare`."""
        several = self._several()
        if several is not None:
            raise UnsupportedError(several)
        if bound.typed.reduced or len(bound.typed.outputs) > 1:
            raise UnsupportedError("reductions")
        if bound.order != tuple(range(len(bound.shape))):
            raise UnsupportedError("the order of axes")
        text = _text(bound.typed)
        # a square does not mention its exponent
        used = sorted({int(k) for k in re.findall(r"x(\d+)", text)})
        kind = self._numexpr.necompiler.getType
        arguments = [(f"x{k}", kind(np.empty(0, bound.inputs[k][1]))) for k in used]
        compiled = threading.local()  # numexpr's compiled expressions hold their operands
        status = self._status

        def function() -> Any:
            if not hasattr(compiled, "function"):
                compiled.function = self._numexpr.NumExpr(text, signature=arguments)
            return compiled.function

        function()

        def run(values: Sequence[Any]) -> Results:
            several = self._several()
            if several is not None:
                raise RuntimeError(several)
            operands, (result,) = bound.operands(values), bound.allocate()
            call, given = function(), [operands[k] for k in used]
            status.clear()
            call(*given, out=result, order="K", casting="no", ex_uses_vml=False)
            # if numexpr got more threads meanwhile, the flags of those are unknown
            return Results([result], status.raised(), doubtful=self._several() is not None)

        return run


def _text(expression: TypedExpression) -> str:
    """Return an expression in numexpr's language, the inputs as x0, x1, ..."""
    found: list[str] = []
    inputs = 0
    for node in expression.nodes:
        if node.dtype not in _FLOATS or node.dtype != expression.nodes[0].dtype:
            raise UnsupportedError(f"{node.op} of {node.dtype.name}")
        if node.op == "input":
            found.append(f"x{inputs}")
            inputs += 1
            continue
        op = "square" if node.op == "power" and node.param == 2 else node.op
        if op not in _FORMS:
            raise UnsupportedError(op)
        found.append(_FORMS[op].format(*(found[arg] for arg in node.args)))
    return found[expression.outputs[0][0]]
