"""Tries out whether a backend computes as the installed NumPy does, to the last bit.

NumPy does not document the order of its sums, and which of two zeros is the least depends on the
processor; sines are those of the C library. So the results of a backend are compared with NumPy's,
once, on random arrays.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_marsched.installation import __version__
from dask_marsched.kernels import numpy_backend
from dask_marsched.kernels.backend import Results, UnsupportedError
from dask_marsched.kernels.bound_expression import BoundExpression, bind, signature
from dask_marsched.kernels.expression import Expression, Node, Output
from dask_marsched.kernels.operations import ACCUMULATING, SELECTING, UFUNCS

Prepare = Callable[[BoundExpression], Callable[[Sequence[Any]], Results]]

#: Lengths of rows: around those at which NumPy changes its way to add up, or halves a row; and so
#: many random ones below a bound.
_SHORT = (1, 2, 7, 8, 9, 16, 23, 127, 128, 129, 136, 249, 255, 256, 257, 1000, 1024, 1033, 2056)
_DRAWN, _BELOW = 40, 2500
_LONG = (8191, 8192, 8193, 16400, 20011, 65536 + 24, 100_003)
_VALUES = 60_000  #: Drawn operands of a function, for each range
_AWKWARD = (0.0, -0.0, 1.0, -1.0, 1e-310, -1e-40, 1e30, -1e30)


class ReductionClaim(NamedTuple):
    """A kind of reduction that a backend may compute as NumPy does."""

    kind: str
    dtype: np.dtype[Any]  #: of the values
    mode: str  #: as in `KernelLayout`
    converted: bool  #: whether NumPy converts the values to that dtype, one buffer at a time


class FunctionClaim(NamedTuple):
    """A function of the C library that a backend may compute as NumPy does."""

    op: str
    dtype: np.dtype[Any]


Claim = ReductionClaim | FunctionClaim
_OF_LIBRARY = frozenset({("sin", "d"), ("cos", "d"), ("hypot", "f"), ("hypot", "d")})


def functions(found: BoundExpression) -> tuple[FunctionClaim, ...]:
    """Return the claims of a backend that replaces functions of the C library."""
    made = {(n.op, n.dtype) for n in found.typed.nodes if (n.op, n.dtype.char) in _OF_LIBRARY}
    return tuple(FunctionClaim(*claim) for claim in sorted(made, key=repr))


def claims(found: BoundExpression) -> list[ReductionClaim]:
    """Return the claims of a backend that evaluates an expression with reductions of floats.

    Raises UnsupportedError if no claim covers the reduction of such arrays.
    """
    made = []
    nodes, mode = found.typed.nodes, found.layout.mode
    for number, (position, kind, _) in enumerate(found.typed.outputs):
        dtype = nodes[position].dtype
        if kind in ACCUMULATING | SELECTING and dtype.kind in "fc":
            if not found.is_packed(number):
                raise UnsupportedError(f"{kind} of an array with gaps")
            converted = kind == "sum" and mode == "rows" and found.typed.converted[number]
            made.append(ReductionClaim(kind or "", dtype, mode, converted))
    if len({claim.converted for claim in made if claim.kind == "sum"}) > 1:
        raise UnsupportedError("sums of converted values together with others")
    return made


def numpys() -> str:
    """Return, as text, the versions and settings that NumPy's results depend on."""
    # the choice of loops for this processor can be changed when NumPy and the C library start
    chosen = {k: v for k, v in os.environ.items() if k.startswith(("NPY_", "GLIBC_"))}
    angles = np.linspace(-200.0, 200.0, 4096)
    library = hashlib.sha256(np.sin(angles).tobytes() + np.hypot(angles, 1.0).tobytes())
    return f"{__version__} numpy {np.__version__} {sorted(chosen.items())} {library.hexdigest()}"


def holds(claim: Claim, prepare: Prepare) -> bool:
    """Return whether a claim is true of a backend with a certain `Backend.prepare`."""
    random = np.random.default_rng(0)
    if isinstance(claim, FunctionClaim):
        return _computes(claim, prepare, random)
    for expression, values in _cases(claim, random):
        found = bind(expression, signature(values))
        run = prepare(found)
        for _ in range(2):
            with np.errstate(all="ignore"):
                wanted = numpy_backend.evaluate(expression, values)
                got = run(values)
            if not got.doubtful and not all(map(_identical, got.values, wanted)):
                return False
            _refill(claim, values[0], random)
    return True


def _computes(claim: FunctionClaim, prepare: Prepare, random: np.random.Generator) -> bool:
    places = range(UFUNCS[claim.op].nin)
    nodes = (*(Node("input", (), place) for place in places), Node(claim.op, tuple(places)))
    expression = Expression(nodes, (Output(len(places)),))
    for values in _operands(claim, random):
        inputs = [values, random.permutation(values)][: len(places)]
        run = prepare(bind(expression, signature(inputs)))
        with np.errstate(all="ignore"):
            if not _identical(run(inputs).values[0], UFUNCS[claim.op](*inputs)):
                return False
    return True


def _operands(claim: FunctionClaim, random: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    """Yield values of all sizes, many of them near multiples of pi / 2 and of 1 / 128."""
    kind = np.finfo(claim.dtype)
    for most in (0.2, 1.0, 4.0, 100.0, 1e5, 1e8):
        yield random.uniform(-most, most, _VALUES).astype(claim.dtype)
    for unit, most in ((np.pi / 2, 40), (np.pi / 2, 2**26), (1 / 128, 500)):
        multiples = unit * random.integers(-most, most, _VALUES)
        near = multiples * (1 + kind.eps * random.integers(-2, 3, _VALUES))
        yield near.astype(claim.dtype)
    for exponents in ((kind.minexp - kind.nmant, kind.maxexp), (-60, 26)):
        sizes = np.exp2(random.uniform(*exponents, _VALUES)).astype(claim.dtype)
        yield random.choice([-1, 1], _VALUES).astype(claim.dtype) * sizes
    yield random.choice(np.array([*_AWKWARD, np.nan, np.inf]).astype(claim.dtype), _VALUES)


def _identical(got: Any, wanted: Any) -> bool:
    number = ~np.isnan(wanted)
    same = np.array_equal(got, wanted, equal_nan=True)
    return same and bool(np.all((np.signbit(got) == np.signbit(wanted))[number]))


def _cases(
    claim: ReductionClaim, random: np.random.Generator
) -> Iterator[tuple[Expression, list[np.ndarray[Any, Any]]]]:
    """Yield expressions with their inputs, in several layouts."""
    nodes = (Node("input", (), 0), Node("negative", (0,)))
    output = Output(1, claim.kind, claim.dtype.str if claim.converted else None)
    source = np.dtype(f"i{min(claim.dtype.itemsize, 8)}") if claim.converted else claim.dtype

    def drawn(axes: tuple[int, ...] | None, shape: tuple[int, ...], gap: int = 0) -> Any:
        full = (*shape[:-1], shape[-1] + gap)
        values = np.empty(full, source)[..., : shape[-1]]
        _fill(claim, values, random)
        return Expression(nodes, (output,), axes), [values]

    if claim.mode == "columns":
        for rows in (2, 3, 7, 8, 9, 130):
            yield drawn((0,), (rows, 1100))
            yield drawn((0,), (rows, 3), gap=1)
            yield drawn((1,), (3, rows, 17))
        return
    for length in (*_SHORT, *random.integers(1, _BELOW, _DRAWN), *_LONG):
        yield drawn(None, (int(length),))
    for length in (2, 8, 129, 1100, 8200):
        yield drawn((1,), (3, length), gap=1)
        yield drawn((0, 2), (3, 5, length))
    for shape in ((70, 3), (9, 130), (40, 1100), (7, 4099)):
        yield drawn(None, shape, gap=1)  # one row for NumPy, several loops in a kernel


def _fill(claim: ReductionClaim, values: np.ndarray[Any, Any], random: np.random.Generator) -> None:
    """Draw values whose sum or product depends on their order."""
    if claim.converted:
        most = np.iinfo(values.dtype).max
        values[...] = random.integers(-most, most, values.shape, values.dtype)
    elif claim.kind == "prod":
        sizes = 2 ** random.normal(0, 0.05, values.shape)
        values[...] = random.choice([-1, 1], values.shape) * sizes
    else:
        sizes = 10.0 ** random.integers(0, 4, values.shape)
        values[...] = random.normal(0, 1, values.shape) * sizes


def _refill(
    claim: ReductionClaim, values: np.ndarray[Any, Any], random: np.random.Generator
) -> None:
    """Draw zeros, denormal and large values."""
    if claim.converted:
        _fill(claim, values, random)
        return
    with np.errstate(all="ignore"):
        values[...] = random.choice(np.array(_AWKWARD).astype(claim.dtype), values.shape)
