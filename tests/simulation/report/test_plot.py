import matplotlib.pyplot
import numpy as np
import pytest

from tests.recorded_reports import small_report, wide_report


@pytest.fixture
def panels():
    def panels(report):
        figure = report.plot()
        figure.canvas.draw()
        assert matplotlib.pyplot.get_fignums() == []  # nothing is shown, nothing registered
        return figure.axes

    return panels


def lines(panel):
    return {line.get_label(): line.get_ydata() for line in panel.get_lines()}


def test_axes_have_units(panels):
    total, each, active = panels(small_report())
    assert total.get_ylabel() == each.get_ylabel() == "B"
    assert active.get_xlabel() == "virtual time (s)"
    assert active.get_xlim() == (0.0, 8.0)
    (bar,) = active.child_axes
    assert bar.get_ylabel() == "share of threads busy"


def test_units_follow_the_size(panels):
    report = small_report(cluster={"workers": 2, "threads": 2, "memory_limit": 2**34, "seed": 0})
    _, each, *_ = panels(report)
    assert "limit 16.00 GiB" in each.get_title(loc="left")
    assert each.get_ylim()[1] < 200  # a limit far above does not flatten the curves


def test_memory_faults_and_limit_are_drawn(panels):
    total, each, *_ = panels(small_report())
    levels = lines(each)
    assert {name: max(level) for name, level in levels.items()} == {
        "worker 0": 90,
        "worker 1": 110,
        "worker 2": 0,
        "memory limit": 120,
    }
    stack = total.collections[: total.get_legend_handles_labels()[1].index("other groups") + 1]
    top = max(path.vertices[:, 1].max() for area in stack for path in area.get_paths())
    assert top == 200
    assert [text.get_text() for text in total.texts] == ["kill 0", "join 2"]


def test_activity_is_the_share_of_busy_threads(panels):
    _, _, active = panels(small_report())
    (image,) = active.get_images()
    shares = np.asarray(image.get_array())
    assert shares.shape[0] == 3
    np.testing.assert_allclose(shares.mean(axis=1), [2.75 / 16, 2.5 / 16, 0], atol=1e-9)


@pytest.mark.extended
def test_many_workers_share_rows_and_bands(panels):
    report = wide_report(1000)
    _, each, active = panels(report)
    assert len(each.get_lines()) == 2  # the median and the limit
    (image,) = active.get_images()
    shares = np.asarray(image.get_array())
    assert shares.shape[0] == 200
    assert list(image.get_extent()) == [0, 6.0, -0.5, 999.5]
    np.testing.assert_allclose(shares.mean(), 0.5)
