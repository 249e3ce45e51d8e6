"""Compiles kernels for all workers of a user on a host, in one process that ends when idle.

LLVM's library takes 70 MiB and more, so workers do not load it. The first worker that needs a
kernel binds a socket in the cache directory, and starts a process that listens there. Each
connection carries one request, an expression, and its answer, a kernel. The process may outlive the
worker that started it. Only users who may write machine code to that directory can connect.
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
from pathlib import Path

from dask_marsched.kernels import cache_files
from dask_marsched.kernels.llvm.kernel_files import Key

#: Seconds without a request after which the process ends, and that an answer may take.
_IDLE, _PATIENCE = 2.0, 60.0
_NICE = 5
_ALIVE, _MADE, _FAILED = b"!", b"+", b"-"
#: An empty package stands in for `dask_marsched`, whose import of Dask takes a second and 100 MiB.
_PROGRAM = """
import json, sys, types
sys.path[:], where, *rest = json.loads(sys.argv[1])
package = types.ModuleType("dask_marsched")
package.__path__ = [where]
sys.modules["dask_marsched"] = package
from dask_marsched.kernels.llvm import compiler_process
compiler_process.main(*rest)
"""


def ask(address: Path, path: Path, key: Key) -> bytes | None:
    """Return the content of a kernel's file from the compiler process; None if none can be started.

    The process listens at a socket's ``address`` and writes the file. Raises RuntimeError if
    compiling failed, or ended the process.
    """
    if sys.platform != "linux":
        return None
    request = pickle.dumps((path.absolute(), key))
    for _ in range(2):  # the process may end just when it is found
        try:
            answer = _answer(address, request)
        except OSError:
            return None
        if not answer:
            continue
        if answer[1:2] == _MADE:
            return answer[2:]
        raise RuntimeError(answer[2:].decode() or "the compiler has ended")
    return None


def _answer(address: Path, request: bytes) -> bytes:
    handle = os.open(address.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _connected(handle, address) as connection:
            connection.settimeout(_PATIENCE)
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            return _received(connection)
    finally:
        os.close(handle)


def _received(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def _connected(handle: int, address: Path) -> socket.socket:
    # the path of a socket has 107 bytes at most, that of the directory may be longer
    short = f"/proc/self/fd/{handle}/{address.name}"
    with contextlib.ExitStack() as failing, cache_files.claimed(address):
        connection = failing.enter_context(socket.socket(socket.AF_UNIX))
        try:
            connection.connect(short)
        except (FileNotFoundError, ConnectionRefusedError):
            _listen(short, address)
            connection.connect(short)
        failing.pop_all()
    return connection


def _listen(short: str, address: Path) -> None:
    """Bind the socket, on which clients can wait at once, and start the process."""
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(short)
        try:
            address.chmod(0o600)  # before anybody can connect
            listener.listen(128)
            _start(listener, address)
        except OSError:
            address.unlink()
            raise


def _start(listener: socket.socket, address: Path) -> None:
    package = str(Path(__file__).parents[2])
    paths = [os.path.abspath(path) for path in sys.path]
    told = json.dumps([paths, package, listener.fileno(), str(address.absolute()), _IDLE])
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", _PROGRAM, told],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        # it needs no threads to multiply matrices
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        pass_fds=[listener.fileno()],
        start_new_session=True,  # so that Ctrl-C in a terminal does not end it
    )
    # a process that has ended stays in the process table until it is waited for
    threading.Thread(target=process.wait, name="marsched-compiler", daemon=True).start()


# -- in that process -----------------------------------------------------------------------


def main(number: int, address: str, idle: float) -> None:
    """Answer on the socket with a file descriptor and a path, until it is idle for some seconds."""
    os.nice(_NICE)
    listener, path = socket.socket(fileno=number), Path(address)
    inode = path.stat().st_ino
    try:
        _serve(listener, idle)
    finally:
        with contextlib.suppress(OSError):
            if path.stat().st_ino == inode:
                path.unlink()
        listener.close()


def _serve(listener: socket.socket, idle: float) -> None:
    from dask_marsched.kernels.llvm.compiler import Compiler

    compiler = Compiler()
    while True:
        listener.settimeout(idle)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
        with connection, contextlib.suppress(OSError):  # the client may be gone
            connection.settimeout(_PATIENCE)
            connection.sendall(_ALIVE)
            path, key = pickle.loads(_received(connection))
            content = cache_files.read(path)
            if content is None:
                try:
                    content = compiler.made(key)
                except Exception as error:
                    connection.sendall(_FAILED + f"{type(error).__name__}: {error}".encode())
                    continue
                cache_files.write(path, content)
            connection.sendall(_MADE + content)
