"""Times new expressions in a new process, compilation included.

``python -m benchmarks.kernels.cold stock|kernels DIRECTORY`` prints the seconds; with the
same directory again it is the second run of the program.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.kernels import comparison
from dask_marsched.kernels import backends
from dask_marsched.worker import kernels as kernel_part

CHUNKS = 200
CHUNK_MIB = 8
NAMES = ("rosenbrock", "evi", "cloud mask", "mixed")


def seconds(contestant: str, directory: Path | None) -> float:
    """Return how long the chunks take, imports of the backends and compiling included."""
    chunks = [comparison.chunk(name, "mean", "float64", CHUNK_MIB) for name in NAMES]
    started = time.perf_counter()
    if contestant == "stock":
        wrap = comparison.as_it_is
    else:
        found = backends.cache_directory(str(directory))
        wrap = comparison.make_runner(found, kernel_part.PATIENCE).wrap
    for number in range(CHUNKS):
        # one expression after the other, as a program computes them
        chunks[number * len(chunks) // CHUNKS].run(wrap)
    return time.perf_counter() - started


def run(repeat: int) -> list[tuple[str, float]]:
    """Return seconds of stock, of the first and of the second run, each in a new process."""
    found: list[tuple[str, float]] = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            for name in ("stock", "first run", "second run", "stock"):
                contestant = "stock" if name == "stock" else "kernels"
                command = [sys.executable, "-m", __name__, contestant, scratch]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found.append((name, float(done.stdout.split()[-1])))
    return found


if __name__ == "__main__":
    print(seconds(sys.argv[1], Path(sys.argv[2])))
