"""Each kind of store, by the place where it keeps a journal."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.servers import Server, has_server, running_server

_schemas = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    pytest.importorskip("psycopg")
    if not has_server():
        pytest.skip("no PostgreSQL server is installed")
    with running_server() as server:
        yield server


@pytest.fixture
def schema(postgres: Server) -> str:
    """Return the URL of an empty schema."""
    import psycopg

    name = f"test{next(_schemas)}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return postgres.url(schema=name)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture(params=["directory", "schema"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))
