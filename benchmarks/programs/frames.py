"""Programs of data frames, on time series with the columns ``id``, ``name``, ``x`` and ``y``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from dask.datasets import timeseries
from distributed import Client


def groupby(_: Client) -> Any:
    """Aggregate by a column of few values."""
    return _rows().groupby("name").agg({"x": ["mean", "std"], "y": "max"}).compute()


def groupby_many(_: Client) -> Any:
    """Aggregate by a column of many values, into several partitions."""
    keyed = _rows().map_partitions(_with_key)
    return keyed.groupby("key").x.mean(split_out=8).compute().sum()


def merge_on_index(_: Client) -> Any:
    """Join two frames on their sorted indices."""
    sparse = _rows(freq="60s").rename(columns="{}_other".format)
    return _rows().merge(sparse, left_index=True, right_index=True).x.sum().compute()


def merge_on_column(_: Client) -> Any:
    """Join two frames on a column, many to many."""
    few = _rows(2, freq="60s", partition_freq="6h")
    return _rows(6, freq="10s").merge(few, on="name").x_x.count().compute()


def set_index(_: Client) -> Any:
    """Sort by a column."""
    return _rows(10).set_index("id").map_partitions(len).compute().sum()


def rolling(_: Client) -> Any:
    """Average over windows that cross partitions."""
    return _rows(8).x.rolling("1h").mean().std().compute()


def describe(_: Client) -> Any:
    """Summarise two columns."""
    return _rows(10)[["x", "y"]].describe().compute()


def counts_and_quantiles(_: Client) -> Any:
    """Count the values of a column in a range of the index; find quantiles of another."""
    rows = _rows()
    counts = rows.loc["2000-01-03":"2000-01-10"].name.value_counts()
    return counts.compute(), rows.x.quantile([0.1, 0.9]).compute()


def parquet(_: Client, scratch: Path) -> Any:
    """Write a frame to files, and aggregate what is read from them."""
    import dask.dataframe as dd

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        _rows(10).to_parquet(folder)
        return dd.read_parquet(folder).groupby("name").y.sum().compute()


def difference(_: Client) -> Any:
    """Subtract each row's predecessor, which may be in another partition."""
    rows = _rows(10)
    return (rows.x - rows.x.shift(1)).abs().mean().compute()


def distinct(_: Client) -> Any:
    """Count distinct pairs of two columns."""
    return len(_rows(10)[["id", "name"]].drop_duplicates().compute())


def _with_key(rows: Any) -> Any:
    return rows.assign(key=rows.id * 1000 + rows.index.hour)


def _rows(days: int = 20, freq: str = "2s", partition_freq: str = "12h") -> Any:
    end = f"2000-01-{days + 1:02}"
    return timeseries("2000-01-01", end, freq=freq, partition_freq=partition_freq, seed=1)
