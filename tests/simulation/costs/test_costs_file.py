import json

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.simulation.costs.costs import Costs
from dask_marsched.simulation.costs.costs_file import decode_key, encode_key, read, write

KEYS = st.recursive(
    st.text(max_size=5) | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False),
    lambda parts: st.lists(parts, max_size=3).map(tuple),
    max_leaves=6,
)


def types(part):
    return [types(entry) for entry in part] if isinstance(part, tuple) else type(part)


@given(key=KEYS)
def test_keys_of_strings_numbers_and_tuples_are_kept_exactly(key):
    found = decode_key(encode_key(key))
    assert found == key
    assert types(found) == types(key)


def test_what_is_not_known_stays_unknown(tmp_path):
    path = tmp_path / "costs.parquet"
    joined = {("b", 0): (("x", 0), "y")}
    costs = Costs({"a": 1, ("b", 0): 2}, {"a": 0.25}, {("b", 0): 7}, joined=joined)
    costs.save(path)
    assert Costs.load(path) == costs


def test_a_file_that_tells_of_no_joined_tasks(tmp_path):
    path = tmp_path / "costs.parquet"
    Costs({"a": 1}).save(path)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(table.drop_columns("joined"), path)
    assert Costs.load(path) == Costs({"a": 1})


def test_other_keys_are_kept_by_their_repr(tmp_path):
    path = str(tmp_path / "costs.parquet")
    write(path, {"nbytes": {("x", b"raw"): 1, ("x", np.int64(3)): 2}}, {"recorded": "today"})
    columns, facts = read(path)
    assert list(columns["nbytes"]) == [("x", repr(b"raw")), ("x", 3)]
    assert facts["recorded"] == "today"


def test_files_that_hold_no_costs_are_told(tmp_path):
    path = tmp_path / "costs.parquet"
    with pytest.raises(FileNotFoundError):
        Costs.load(path)
    path.write_bytes(b"something else altogether")
    with pytest.raises(ValueError, match=r"costs\.parquet is no Parquet file"):
        Costs.load(path)
    table = pyarrow.table({"key": ["a"], "nbytes": [1]})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(ValueError, match=r"holds no costs.*record\(client, path\)"):
        Costs.load(path)


def test_a_file_of_a_later_format_is_told(tmp_path):
    path = tmp_path / "costs.parquet"
    Costs({"a": 1}).save(path)
    table = pyarrow.parquet.read_table(path)
    metadata = {b"dask_marsched": json.dumps({"format": 99}).encode()}
    pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(ValueError, match="has format 99, this version reads 1"):
        Costs.load(path)


def test_every_damaged_file_is_a_value_error_that_names_it(tmp_path):
    whole, damaged = tmp_path / "whole.parquet", tmp_path / "damaged.parquet"
    Costs({("a", i): i for i in range(100)}).save(whole)
    content = whole.read_bytes()
    middle = len(content) // 2  # within the metadata at the end of the file
    damaged.write_bytes(content[:middle] + bytes(100) + content[middle + 100 :])
    with pytest.raises(ValueError, match=r"costs: .*damaged\.parquet is no Parquet file"):
        Costs.load(damaged)
