"""Compiles kernels for all workers of a user on a host, in one process that ends when it is idle.

LLVM's library takes 70 MiB and more; so no worker carries it. The first worker that needs a kernel
listens on a socket in the directory where kernels are kept, and starts a process that answers
there: each connection is one request, an expression, and is answered with its kernel. The process
belongs to no worker: it may outlive the one that has started it. Requests and answers are as
trustworthy as the machine code in that directory.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from dask_marsched.kernels import cache_files
from dask_marsched.kernels.llvm.kernel_files import Key

#: Seconds without a request after which the process ends; for which an answer is waited for.
_IDLE, _PATIENCE = 2.0, 60.0
_NICE = 5
_ALIVE, _MADE, _FAILED = b"!", b"+", b"-"
#: The package itself imports Dask, which a compiler has no use for: a second, and 100 MiB.
_PROGRAM = """
import json, sys, types
sys.path[:], where, *rest = json.loads(sys.argv[1])
package = types.ModuleType("dask_marsched")
package.__path__ = [where]
sys.modules["dask_marsched"] = package
from dask_marsched.kernels.llvm import compiler_process
compiler_process.main(*rest)
"""


def ask(directory: Path, kind: str, digest: str, key: Key) -> bytes | None:
    """Have a kernel compiled by that process, which is started where there is none.

    Parameters
    ----------
    directory
        Where kernels are kept, made by `files.private`; this one will be, too.
    kind
        Names what kernels depend on: processes that differ in it do not compile for each other.
    digest
        The kernel's name.
    key
        What it is made from.

    Returns
    -------
    bytes or None
        As `kernel_files` keeps it; None where such a process cannot be had.

    Raises
    ------
    RuntimeError
        If it failed, or ended, over this kernel.
    """
    if sys.platform != "linux":
        return None
    request = pickle.dumps((digest, key))
    for _ in range(2):  # it may be about to end when it is found
        try:
            answer = _answer(directory, f"{kind}.socket", request)
        except OSError:
            return None
        if not answer:
            continue
        if answer[1:2] == _MADE:
            return answer[2:]
        raise RuntimeError(answer[2:].decode() or "the compiler has ended")
    return None


def _answer(directory: Path, name: str, request: bytes) -> bytes:
    with _opened(directory) as handle, _connected(directory, handle, name) as connection:
        connection.settimeout(_PATIENCE)
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        return _received(connection)


def _received(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _connected(directory: Path, handle: int, name: str) -> socket.socket:
    # a socket's path is limited to 107 bytes, those of directories are not
    address = f"/proc/self/fd/{handle}/{name}"
    with contextlib.ExitStack() as failing, cache_files.claimed(directory / name):
        connection = failing.enter_context(socket.socket(socket.AF_UNIX))
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            _listen(directory, handle, name)
            connection.connect(address)
        failing.pop_all()
    return connection


def _listen(directory: Path, handle: int, name: str) -> None:
    """Start a process that listens: whoever connects from now on waits for it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=handle)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{handle}/{name}")
        try:
            os.chmod(name, 0o600, dir_fd=handle)  # before anybody can connect
            listener.listen(128)
            _start(listener, directory, name)
        except OSError:
            os.unlink(name, dir_fd=handle)
            raise


def _start(listener: socket.socket, directory: Path, name: str) -> None:
    package = str(Path(__file__).parents[2])
    paths = [os.path.abspath(path) for path in sys.path]
    told = json.dumps([paths, package, listener.fileno(), str(directory.absolute()), name, _IDLE])
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _PROGRAM, told],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        # it multiplies no matrices
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        pass_fds=[listener.fileno()],
        start_new_session=True,  # what is typed at a terminal is not for it
    )
    # a process that has ended stays until it is waited for
    threading.Thread(target=process.wait, name="marsched-compiler", daemon=True).start()


# -- in that process -----------------------------------------------------------------------


def main(number: int, directory: str, name: str, idle: float) -> None:
    """Answer until nobody asks.

    Parameters
    ----------
    number
        Of the socket's file.
    directory, name
        Where it is.
    idle
        Seconds without a request after which it ends.
    """
    os.nice(_NICE)
    listener, path = socket.socket(fileno=number), Path(directory) / name
    made = path.stat().st_ino
    try:
        _serve(listener, Path(directory), idle)
    finally:
        with contextlib.suppress(OSError):
            if path.stat().st_ino == made:
                path.unlink()
        listener.close()


def _serve(listener: socket.socket, directory: Path, idle: float) -> None:
    from dask_marsched.kernels.llvm.compiler import Compiler

    compiler = Compiler()
    while True:
        listener.settimeout(idle)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
        with connection, contextlib.suppress(OSError):  # who asked may be gone
            connection.settimeout(_PATIENCE)
            connection.sendall(_ALIVE)
            digest, key = pickle.loads(_received(connection))
            path = directory / f"{digest}.o"
            content = cache_files.read(path)
            if content is None:
                try:
                    content = compiler.made(key)
                except Exception as error:
                    connection.sendall(_FAILED + f"{type(error).__name__}: {error}".encode())
                    continue
                cache_files.write(path, content)
            connection.sendall(_MADE + content)
