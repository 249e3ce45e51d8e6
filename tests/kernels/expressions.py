"""Makes expressions for tests: written in Python, or drawn by Hypothesis, with awkward values."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dask_marsched.kernels.evaluator import Kernels, Means
from dask_marsched.kernels.expression import Expression, Node, Output


def awake(backend=None, directory=None, identity="", *, patience=0.0, **more):
    """Return kernels that use a backend from the first chunk on."""
    made = Kernels(lambda: Means(backend, directory, identity), patience=patience, **more)
    made.wake()
    return made


class Building:
    """Collects the nodes that terms add."""

    def __init__(self):
        self.nodes, self.values = [], []

    def add(self, op, args=(), param=None):
        self.nodes.append(Node(op, tuple(args), param))
        return Term(self, len(self.nodes) - 1)

    def input(self, value):
        self.values.append(value)
        return self.add("input", (), len(self.values) - 1)


class Term:
    """A node that operators can be applied to."""

    def __init__(self, building, position):
        self.building, self.position = building, position

    def call(self, op, *others, param=None):
        terms = [self, *(o if isinstance(o, Term) else self.building.input(o) for o in others)]
        return self.building.add(op, [t.position for t in terms], param)

    def __add__(self, other):
        return self.call("add", other)

    def __sub__(self, other):
        return self.call("subtract", other)

    def __mul__(self, other):
        return self.call("multiply", other)

    def __truediv__(self, other):
        return self.call("divide", other)

    def __pow__(self, exponent):
        return self.call("pow", exponent, param=exponent if exponent in (*EXPONENTS, 4) else None)


def expression(function, *arrays, **outputs):
    """Return the expression of a function of terms, and the values of its inputs."""
    building = Building()
    result = function(*map(building.input, arrays))
    return of(building, result, **outputs), building.values


def of(building, term, reduction=None, dtype=None, axes=None, keepdims=False):
    """Return the expression of a term, with only the nodes that it uses."""
    used = {term.position}
    for position in range(term.position, -1, -1):
        if position in used:
            used.update(building.nodes[position].args)
    places = {old: new for new, old in enumerate(sorted(used))}
    nodes = tuple(
        Node(node.op, tuple(places[arg] for arg in node.args), node.param)
        for position, node in enumerate(building.nodes)
        if position in used
    )
    output = Output(places[term.position], reduction, dtype)
    return Expression(nodes, (output,), axes, keepdims)


# -- drawn ---------------------------------------------------------------------------------

FLOATS = ("f4", "f8")
INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
DTYPES = (*FLOATS, *INTEGERS, "?", "c16", "f2")
AWKWARD = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, np.nan, np.inf, -np.inf, 1e-300, 1e300, 3e38, 1e-40]

_UNARY = ["negative", "absolute", "square", "sqrt", "exp", "log", "sin", "cos", "tanh", "isnan",
          "isfinite", "sign", "floor", "rint", "reciprocal", "log1p", "arctan", "invert",
          "logical_not", "positive", "ceil", "signbit", "trunc", "deg2rad", "rad2deg", "isinf",
          "fabs"]  # fmt: skip
_BINARY = ["add", "subtract", "multiply", "divide", "maximum", "minimum", "less", "greater_equal",
           "equal", "not_equal", "floor_divide", "remainder", "hypot", "arctan2", "power",
           "bitwise_and", "bitwise_xor", "logical_or", "heaviside", "copysign", "fmod",
           "less_equal", "greater"]  # fmt: skip
#: Operations that numexpr computes to the last bit.
ARITHMETIC = (["negative", "absolute", "square", "sqrt"],
              ["add", "subtract", "multiply", "divide"])  # fmt: skip
_CASTS = ["<f2", "<f4", "<f8", "<i2", "<i4", "<i8", "|i1", "|u1", "<u2", "<u4", "<u8", "|b1"]
LAYOUTS = ["C", "C", "F", "F", "strided", "reversed", "mirrored", "unaligned", "turned"]
EXPONENTS = (2, 0.5, -1, 3, 2.0, 1)


@st.composite
def arrays(draw, shape, dtypes=DTYPES, scalars=False):
    """Draw an array that can be broadcast to a shape, of any dtype and layout; or a scalar."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    own = tuple(1 if draw(st.integers(0, 5)) == 0 else n for n in shape)
    own = own[draw(st.integers(0, 1)) if len(own) > 1 else 0 :]
    layout = draw(st.sampled_from(LAYOUTS))
    step = 2 if layout == "strided" else 1
    full = tuple(n * step for n in own)
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    awkward = draw(st.booleans())
    with np.errstate(all="ignore"):
        made = _values(random, full, dtype, awkward)
    if scalars and draw(st.integers(0, 7)) == 0:
        single = made.ravel()[0]
        return single if layout == "C" else np.array(single)
    if layout == "F":
        return np.asfortranarray(made)
    if layout == "turned":  # neither C nor F where there are three axes
        return np.moveaxis(np.moveaxis(made, 0, -1).copy(), -1, 0)
    if layout == "strided":
        return made[tuple(slice(None, None, 2) for _ in own)]
    if layout == "reversed":
        return made[tuple(slice(None, None, -1) for _ in own)]
    if layout == "mirrored":  # NumPy turns one axis round
        return made[..., ::-1]
    if layout == "unaligned" and dtype.itemsize > 1:
        raw = np.empty(made.nbytes + 1, np.uint8)[1:]
        copy = np.frombuffer(raw, dtype).reshape(made.shape)
        copy[...] = made
        return copy
    return made


def _values(random, shape, dtype, awkward):
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = (info.min, info.max) if awkward else (max(info.min, -9), 9)
        return random.integers(low, high, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    made = random.normal(0, 2, shape)
    if awkward:
        made = np.where(random.random(shape) < 0.1, random.choice(AWKWARD, shape), made)
    if dtype.kind == "c":
        return (made + 1j * random.normal(0, 2, shape)).astype(dtype)
    return made.astype(dtype)


def steps(array):
    """Return the strides of an array's axes with more than one element."""
    return [s for n, s in zip(array.shape, array.strides, strict=True) if n > 1]


def refill(values, seed):
    """Put other values into arrays; those of every second seed are awkward."""
    random = np.random.default_rng(seed)
    for value in values:
        if isinstance(value, np.ndarray):
            steps = [(1, 0) if s == 0 else (n, s) for n, s in zip(value.shape, value.strides)]  # noqa: B905  # of one array
            own = np.lib.stride_tricks.as_strided(
                value, [n for n, _ in steps], [s for _, s in steps]
            )
            with np.errstate(all="ignore"):
                own[...] = _values(random, own.shape, own.dtype, seed % 2 == 1)


@st.composite
def cases(draw, reductions=(None,), dtypes=DTYPES, operations=None):
    """Draw an expression with the values of its inputs.

    ``operations`` are names of those with one and with two operands, without literals, conditions
    and casts.
    """
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=7))
    if draw(st.integers(0, 3)) == 0:  # more than one block, and not a whole number of them
        shape = (*shape[:-1], draw(st.sampled_from([130, 1024, 1100, 2100])))
    building = Building()
    terms = [
        building.input(draw(arrays(shape, dtypes, scalars=True)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    # one input has the whole shape, and goes into the result; it may be broadcast
    view = np.broadcast_to(drawn := draw(arrays(shape, dtypes)), shape)
    whole = building.input(np.lib.stride_tricks.as_strided(drawn, shape, view.strides))
    terms.append(whole)
    for _ in range(draw(st.integers(1, 6))):
        terms.append(draw(_operations(terms, operations)))
    lasts = ["where", "add", "maximum", "less", "divide"] if operations is None else operations[1]
    result, last = terms[-1], draw(st.sampled_from(lasts))
    result = (
        _bool(terms[-2]).call("where", result, whole)
        if last == "where"
        else result.call(last, whole)
    )
    kind = draw(st.sampled_from(reductions))
    if kind is None:
        return of(building, result), building.values
    axes = draw(st.sampled_from([None, *((a,) for a in range(len(shape))), (0, len(shape) - 1)]))
    if axes is not None and (len(set(axes)) < len(axes) or kind.startswith("arg")):
        axes = axes[:1]
    reduced = of(building, result, kind, None, axes, draw(st.booleans()))
    return reduced, building.values


def _bool(term):
    return term.call("not_equal", 0)


@st.composite
def _operations(draw, terms, operations):
    some = st.sampled_from(terms[-4:])
    unary, binary = operations or (_UNARY, _BINARY)
    kind = draw(st.integers(0, 9 if operations is None else 6))
    a, b = draw(some), draw(some)
    if kind < 3:
        return a.call(draw(st.sampled_from(unary)))
    if kind < 7:
        return a.call(draw(st.sampled_from(binary)), b)
    if kind == 7:
        literal = draw(st.sampled_from([*EXPONENTS, 0.0, 1.5]))
        op = draw(st.sampled_from(["add", "multiply", "divide", "less", "pow", "power"]))
        multiplied = op in ("pow", "power") and literal in EXPONENTS
        return a.call(op, literal, param=literal if multiplied else None)
    if kind == 8:
        return _bool(draw(some)).call("where", a, b) if a is not b else a
    return a.call("cast", param=draw(st.sampled_from(_CASTS)))
