"""Objects of all kinds that results can be, each with how to tell that two are the same."""

import numpy as np
import pandas as pd

N = 200_000


def kinds():
    rng = np.random.default_rng(0)
    x = rng.random((N // 100, 100))
    read_only = x.copy()
    read_only.flags.writeable = False
    record = np.zeros(N, dtype=[("a", "i4"), ("b", "f8"), ("c", "S3")])
    record["a"] = np.arange(N)
    return {
        "plain": x,
        "fortran": np.asfortranarray(x),
        "strided": x[::2, ::3],
        "read-only": read_only,
        "structured": record,
        "object": np.array([{"a": i} for i in range(1000)], dtype=object),
        "masked": np.ma.masked_greater(x, 0.5),
        "zero-size": np.empty((0, 5)),
        "scalar-array": np.array(3.5),
        "broadcast": np.broadcast_to(np.arange(1000.0), (300, 1000)),
        "datetimes": np.arange(N).astype("M8[s]"),
        "big-endian": x.astype(">f8"),
        "frame": pd.DataFrame({"a": np.arange(N), "b": ["x"] * N}),
        "bytes": b"abc" * N,
        "list": [x[:10].copy(), "text", {"k": x[10:20].copy()}],
        "number": 17,
    }


def same(got, expected):
    """Whether what was got is what is expected, to the bit: also type, order and flags."""
    if type(got) is not type(expected):
        return False
    if isinstance(got, np.ma.MaskedArray):
        return (
            same(got.data, expected.data)
            and same(got.mask, expected.mask)
            and got.fill_value == expected.fill_value
        )
    if isinstance(got, np.ndarray):
        if (got.dtype, got.shape, got.flags.writeable) != (
            expected.dtype,
            expected.shape,
            expected.flags.writeable,
        ):
            return False
        orders = [(x.flags.c_contiguous, x.flags.f_contiguous) for x in (got, expected)]
        if any(orders[1]) and orders[0] != orders[1]:
            return False
        return (
            got.tolist() == expected.tolist()
            if got.dtype.hasobject
            else got.tobytes() == expected.tobytes()
        )
    if isinstance(got, pd.DataFrame):
        return got.equals(expected)
    if isinstance(got, dict):
        return got.keys() == expected.keys() and all(same(got[k], expected[k]) for k in got)
    if isinstance(got, list):
        return len(got) == len(expected) and all(map(same, got, expected))
    return bool(got == expected)


def spill(file, frames):
    """Write whole frames to a spill file."""
    return file.write(tuple(frame.nbytes for frame in frames), ([frame] for frame in frames))
