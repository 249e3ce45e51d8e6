"""Programs of futures, of delayed functions and of bags."""

from __future__ import annotations

import time
from typing import Any

import dask
import dask.bag as db
import numpy as np
from dask import delayed
from distributed import Client, as_completed, worker_client


def delayed_tree(_: Client) -> Any:
    """Add up many large arrays in a binary tree."""
    level = [delayed(_draw)(seed, (1000, 1000)) for seed in range(128)]
    while len(level) > 1:
        level = [delayed(_add)(one, other) for one, other in zip(*[iter(level)] * 2, strict=True)]
    return float(level[0].sum().compute())


def sweep_scattered(client: Client) -> Any:
    """Try many parameters on a large array that is on one worker."""
    array = client.scatter(_draw(0, (2500, 1000)))
    trials = [client.submit(_scaled_sum, array, factor, pure=False) for factor in range(300)]
    return sum(client.gather(trials))


def sweep_delayed(_: Client) -> Any:
    """Try many parameters on a large array that a task makes."""
    array = delayed(_draw)(0, (2500, 1000))
    return sum(dask.compute(*(delayed(_scaled_sum)(array, factor) for factor in range(300))))


def submit_as_completed(client: Client) -> Any:
    """Submit a further task for each that completes."""
    running = as_completed([_submit_sleep(client, number) for number in range(60)])
    total, submitted = 0, 60
    for future in running:
        total += future.result()
        if submitted < 400:
            running.add(_submit_sleep(client, submitted))
            submitted += 1
    return total


def pipeline(client: Client) -> Any:
    """Map three functions over numbers, one after another."""
    read = client.map(_slow_ones, range(200), pure=False)
    doubled = client.map(_slow_double, read)
    return sum(client.gather(client.map(_sum, doubled)))


def long_and_short(client: Client) -> Any:
    """Map a function that takes 1 s for every fiftieth number and 5 ms for others."""
    return sum(client.gather(client.map(_long_or_short, range(400), pure=False)))


def nested(client: Client) -> Any:
    """Submit tasks from tasks."""
    return sum(client.gather(client.map(_sum_of_squares, range(0, 1000, 50))))


def chain(client: Client) -> Any:
    """Submit tasks of which each reads the one before."""
    last = client.submit(np.ones, 100_000)
    for number in range(150):
        last = client.submit(_add, last, number)
    return float(last.result()[0])


def bag_words(_: Client) -> Any:
    """Count words."""
    words = db.from_sequence(range(200), npartitions=40).map(_words).flatten()
    return sorted(words.frequencies().compute())


def bag_foldby(_: Client) -> Any:
    """Add up numbers by their remainder."""
    numbers = db.from_sequence(range(400_000), npartitions=40)
    return sorted(numbers.foldby(_remainder, _add, 0, _add, 0).compute())


def _submit_sleep(client: Client, number: int) -> Any:
    return client.submit(_after, 0.01, number, pure=False)


def _after(seconds: float, value: Any) -> Any:
    time.sleep(seconds)
    return value


def _long_or_short(number: int) -> int:
    time.sleep(1.0 if number % 50 == 0 else 0.005)
    return number


def _slow_ones(number: int) -> Any:
    time.sleep(0.01)
    return np.ones(200_000) * number


def _slow_double(array: Any) -> Any:
    time.sleep(0.005)
    return array * 2


def _draw(seed: int, shape: tuple[int, int]) -> Any:
    return np.random.default_rng(seed).random(shape)


def _scaled_sum(array: Any, factor: int) -> float:
    return _sum(array * factor)


def _sum(array: Any) -> float:
    return float(array.sum())


def _sum_of_squares(first: int) -> int:
    with worker_client() as client:
        return sum(client.gather(client.map(_square, range(first, first + 5))))


def _square(number: int) -> int:
    return number * number


def _add(one: Any, other: Any) -> Any:
    return one + other


def _words(seed: int) -> list[str]:
    return [f"w{(seed * i) % 97}" for i in range(5000)]


def _remainder(number: int) -> int:
    return number % 7
