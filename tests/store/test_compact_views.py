"""Small views of large arrays, and the arrays that they keep alive."""

import gc
import weakref

import numpy as np
import pytest

from dask_marsched.store.compact_views import compact
from dask_marsched.store.eviction import SpillingBuffer
from dask_marsched.store.spill_tier import SpillTier

SHAPE = (64, 80, 60)
VIEWS = {
    "columns": np.s_[:, :, -5:],
    "rows": np.s_[:, 3:7],
    "a plane": np.s_[9],
    "a plane of one": np.s_[9:10],
    "a column": np.s_[:, :, 2],
    "stepped": np.s_[::2, ::3, ::4],
    "planes": np.s_[4:6],
}


def array():
    return np.random.default_rng(0).normal(size=SHAPE) * 1e3


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("index", VIEWS.values(), ids=VIEWS)
def test_the_array_is_freed_and_sums_round_alike(index, order):
    base = array()
    view = base[index]
    if view.ndim == 3:
        view = view.transpose(order)
    expected = [view.sum(), view.std(), *(view.sum(axis).tobytes() for axis in range(view.ndim))]
    left, there = weakref.ref(base), view.tobytes()
    del base
    view = compact(view)
    gc.collect()
    assert left() is None
    assert view.tobytes() == there
    assert expected == [
        view.sum(),
        view.std(),
        *(view.sum(axis).tobytes() for axis in range(view.ndim)),
    ]


def test_views_stay_whose_array_is_large_or_somebody_elses_or_needed():
    base = array()
    shared, own = base[:2], array()[:60]
    assert compact(shared) is shared  # `base` is read here, too
    assert compact(own) is own
    for other in (array()[:2][::-1], np.broadcast_to(array()[:1, 0, 0], (8, 1)), base, "text"):
        assert compact(other) is other
    small = np.zeros(100)[:2]
    assert compact(small) is small


def test_what_may_not_be_written_stays_so():
    base = array()
    base.flags.writeable = False
    view = base[:2]
    del base
    assert not compact(view).flags.writeable


def test_a_worker_keeps_the_view_only(tmp_path):
    tier = SpillTier(str(tmp_path), False, None)
    store = SpillingBuffer(tier, 1e9, lambda _, value: value.nbytes)
    base = array()
    left, expected = weakref.ref(base), base[:, :, -1].copy()
    views = [base[:, :, -1]]
    del base
    store["x"] = views.pop()
    gc.collect()
    assert left() is None
    np.testing.assert_array_equal(store["x"], expected)
