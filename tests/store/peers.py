"""Other processes of this host that own or read shared memory."""

import contextlib
import pickle
import subprocess
import sys
from pathlib import Path

# Commands come as pickles on standard input, answers go back the same way.
_LOOP = """
import pickle, sys
import numpy as np
from dask_marsched.store.arena import Arena, segment_size
from dask_marsched.store.attachment import Attachments
from dask_marsched.store.presence import claim, is_claimed
from dask_marsched.store.segment import create_segment

names = globals()
while True:
    try:
        code, values = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    names.update(values)
    try:
        try:
            answer = eval(code)
        except SyntaxError:
            answer = exec(code, names)
    except OSError as error:
        answer = error
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


class Peer:
    """A process that does what it is told."""

    def __init__(self, *before: str) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", _LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.pid = self.process.pid

    def do(self, code: str, **values: object) -> object:
        pickle.dump((code, values), self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


@contextlib.contextmanager
def peers(*befores: tuple[str, ...]):
    """Start a process for each; all have ended afterwards."""
    with contextlib.ExitStack() as stack:
        started = []
        for before in befores:
            started.append(Peer(*before))
            stack.callback(started[-1].close)
        yield started


def segments(pids=None) -> set[str]:
    """Return the segments that these processes, or any of this machine, have open or mapped."""
    found = set()
    for pid in pids or [p.name for p in Path("/proc").iterdir() if p.name.isdigit()]:
        process = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                if "memfd:dask-marsched" in line:
                    found.add(line.split()[4])
        for link in (process / "fd").glob("*"):
            with contextlib.suppress(OSError):  # one that was closed meanwhile
                if "memfd:dask-marsched" in str(link.readlink()):
                    found.add(str(link.stat().st_ino))
    return found
