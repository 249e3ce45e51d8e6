from __future__ import annotations

from dask_marsched.core.size_model import SizeModel, kinds


def test_finest_kind_wins_and_coarser_ones_stand_in() -> None:
    model = SizeModel()
    assert model.observe(kinds("x", 1, 2, (0, 0)), 100)
    assert not model.observe(kinds("x", 1, 2, (2, 4)), 200)
    assert model.observe(kinds("x", 1, 2, (1, 0)), 10)
    assert model.predict(kinds("x", 1, 2, (8, 8))) == 150
    assert model.predict(kinds("x", 1, 2, (1, 8))) == 10
    assert model.predict(kinds("x", 1, 7, ("a",))) == (100 + 200 + 10) / 3
    assert model.predict(kinds("x", 9, 9, ())) == (100 + 200 + 10) / 3
    assert model.predict(kinds("y", 1, 2, (0, 0))) is None
