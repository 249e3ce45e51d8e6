"""``python -m benchmarks.tpch.data``: makes a folder with TPC-H's tables and queries.

The queries are those of github.com/coiled/benchmarks for Dask. Its schema is kept as well: dates
are timestamps and decimals are floats. Tables are made by ``tpchgen-cli`` (on PyPI).
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

REPOSITORY = "https://github.com/coiled/benchmarks"
#: The version of the queries.
REVISION = "d2b758417b4d81533474d7bc0dc9c93636b9238b"
QUERIES = "dask_queries.py"
#: Files of each table, per unit of scale; one of each table that is not here.
PARTS = {"lineitem": 2, "orders": 1, "partsupp": 1, "part": 1, "customer": 1}
TABLES = ("region", "nation", "supplier", *PARTS)


@click.command("benchmarks.tpch.data", help=__doc__)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--scale", default=5, show_default=True, help="About GB of text.")
@click.option("--repository", default=REPOSITORY, help="Another clone, or a git directory.")
@click.option("--tpchgen", default="tpchgen-cli", help="The program that makes the tables.")
def make(folder: Path, scale: int, repository: str, tpchgen: str) -> None:
    """Make the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / QUERIES).write_text(read_queries(repository))
    for table in TABLES:
        with tempfile.TemporaryDirectory(dir=folder, prefix="raw-") as raw:
            parts = PARTS.get(table, 0) * scale or 1
            command = [tpchgen, "parquet", "-q", "-s", str(scale), "-T", table, "-p", str(parts)]
            subprocess.run([*command, "-o", raw], check=True)
            for file in Path(raw, table).glob("*.parquet"):
                relax(file, folder / table / file.name)
        click.echo(table)


def read_queries(repository: str) -> str:
    """Return the source of the queries in a repository, which is cloned unless it is local."""
    with tempfile.TemporaryDirectory() as scratch:
        if not Path(repository).exists():
            command = ["git", "clone", "-q", "--no-checkout", repository, scratch]
            subprocess.run(command, check=True)
            repository = scratch
        show = ["git", "-C", repository, "show", f"{REVISION}:tests/tpch/{QUERIES}"]
        return subprocess.run(show, check=True, stdout=subprocess.PIPE, text=True).stdout


def relax(source: Path, target: Path) -> None:
    """Copy a Parquet file, dates as timestamps and decimals as floats."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def simple(kind: Any) -> Any:
        if pa.types.is_decimal(kind):
            return pa.float64()
        if pa.types.is_date(kind):
            return pa.timestamp("ms")
        return pa.string() if pa.types.is_string_view(kind) else kind

    target.parent.mkdir(exist_ok=True)
    table = pq.read_table(source)
    schema = pa.schema([pa.field(field.name, simple(field.type)) for field in table.schema])
    pq.write_table(table.cast(schema), target)


if __name__ == "__main__":
    make(prog_name="python -m benchmarks.tpch.data")
