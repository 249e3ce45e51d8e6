"""A PostgreSQL server of our own, with its files in a directory that is removed."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


def has_server() -> bool:
    return bool(shutil.which("initdb") and shutil.which("pg_ctl"))


class Server:
    """Reached through a socket in its own directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data = directory / "data"
        # The server refuses to run as root.
        self._as = {"user": "nobody"} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(directory, "nobody")
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "user", "-N", "-E", "UTF8")
        self.start()

    def _run(self, *args: object) -> None:
        subprocess.run(
            list(map(str, args)),
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
            **self._as,
        )

    def start(self) -> None:
        options = f"-k {self._directory} -c listen_addresses= -c fsync=off"
        log = self._directory / "log"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def url(self, user: str = "user", schema: str = "public") -> str:
        return (
            f"postgresql://{user}@/postgres?host={self._directory}&options=-csearch_path%3D{schema}"
        )


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # sockets' paths must be short
    try:
        server = Server(directory)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory)
