"""``python -m benchmarks``."""

from benchmarks.command import bench

bench(prog_name="python -m benchmarks")
