"""What happened meanwhile: counts at the end less those at the beginning."""

from dask_marsched.report import changes


def test_counts():
    assert changes.less(5, 3) == 2
    assert changes.less(5, None) == 5
    assert changes.less(None, 3) is None
    assert changes.less(1, 3) == 0  # counted anew


def table(between, names, rows):
    return {"between": between, "names": names, "bytes": rows}


def test_a_matrix_is_subtracted_by_name():
    before = table("workers", ["a", "b"], [[0, 10], [5, 0]])
    after = table("workers", ["b", "a", "c"], [[0, 5, 7], [30, 0, 0], [0, 1, 0]])
    assert changes.matrix(after, before) == [("a", "b", 20), ("b", "c", 7), ("c", "a", 1)]


def test_a_matrix_of_something_else_is_not_subtracted():
    before = table("workers", ["a", "b"], [[0, 10], [5, 0]])
    after = table("hosts", ["a", "b"], [[0, 30], [0, 0]])
    assert changes.matrix(after, before) == [("a", "b", 30)]
    assert changes.matrix(after, None) == [("a", "b", 30)]


def expression(text, runs, saved, compiled=0.0):
    return {
        "text": text,
        "dtypes": "float64",
        "backend": "llvm",
        "runs": runs,
        "saved": saved,
        "compiled": compiled,
    }


def test_expressions_that_ran_meanwhile():
    before = [expression("a+b", 3, 1.0, 0.5), expression("a*b", 4, 2.0)]
    after = [
        expression("a+b", 5, 0.75, 0.5),  # slower than NumPy of late
        expression("a*b", 4, 2.0),
        expression("a-b", 1, 0.25, 0.125),
    ]
    found = changes.expressions(after, before)
    assert [(one["text"], one["runs"], one["saved"], one["compiled"]) for one in found] == [
        ("a-b", 1, 0.25, 0.125),
        ("a+b", 2, -0.25, 0.0),
    ]
