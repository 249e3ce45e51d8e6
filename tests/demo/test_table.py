from dask_marsched.demo import table


def test_table(comparisons):
    lines = list(table.lines(comparisons))
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["stock", "marsched", "ratio"]
    assert lines[2] == "an analysis that moves much"
    assert lines[3].split()[-3:] == ["1,200", "60", "0.05"]
    assert lines[6].split()[-3:] == ["12.3", "10.0", "0.81"]
    assert lines[8].split()[-3:] == ["0", "3", "-"]
