"""Runs a simulation in this thread, in a new thread, or in a process with a given hash seed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import cloudpickle
import dask

T = TypeVar("T")

#: The word before a token.
_WORD = re.compile(rb"[A-Za-z_-]*\Z")

#: A token in a name: a hash of contents, or a random number.
_TOKEN = re.compile(
    rb"(?<![0-9a-f])(?:[0-9a-f]{32}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})(?![0-9a-f])"
)


def call(
    function: Callable[[], T],
    isolated: bool | None,
    names: Iterable[str] | None = None,
    seed: int = 0,
) -> T:
    """Call a function where its result does not depend on this process.

    The order of sets of strings, and some choices of Dask with it, depends on the hash seed and on
    the tokens in the strings. ``isolated`` True pickles the function for a process with the hash
    ``seed``; False calls it here; None chooses another process unless this one has that
    ``PYTHONHASHSEED``. ``names``, in the same order in every process, let all tokens be replaced;
    None keeps them.
    """
    if isolated is False:
        return _here(function)
    question = cloudpickle.dumps((dask.config.config, function))
    given: dict[bytes, bytes] = {}
    if names is not None:
        question, given = with_repeatable_tokens(question, names)
    hash_seed = str(seed % 2**32)  # Python accepts no others
    if isolated or os.environ.get("PYTHONHASHSEED") != hash_seed:
        answer = _in_process(question, hash_seed)
    else:
        answer = _here(lambda: _answer(question))
    error, result = cloudpickle.loads(with_tokens(answer, given))
    if error is not None:
        raise error
    found: T = result
    return found


def _here(function: Callable[[], T]) -> T:
    """Call a function in this process, in a new thread if an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function()
    with ThreadPoolExecutor(1, thread_name_prefix="marsched-twin") as pool:
        return pool.submit(function).result()


def _in_process(question: bytes, hash_seed: str) -> bytes:
    code = "from dask_marsched.simulation.isolation import child; child()"
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=question,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the simulating process ended with code {done.returncode}")
    return done.stdout


def with_repeatable_tokens(
    pickled: bytes, names: Iterable[str] = ()
) -> tuple[bytes, dict[bytes, bytes]]:
    """Replace Dask's tokens in a pickle by repeatable ones; return it and the replacements.

    Tokens come from random numbers, versions and paths, and names decide ties in ``dask.order`` and
    in every set of keys. So each token is replaced by one of the same length that depends only on
    the word before it and on the number of earlier tokens with that word. ``names`` come first, in
    the same order in every process, since the order in a pickle may depend on the hash seed.
    """
    new: dict[bytes, bytes] = {}
    count: Counter[bytes] = Counter()

    def replace(found: re.Match[bytes]) -> bytes:
        token = found[0]
        if token not in new:
            word = _WORD.search(found.string[max(0, found.start() - 80) : found.start()])
            what = word[0] if word else b""
            count[what] += 1
            name = what + b"%d" % count[what]
            digits = hashlib.md5(name, usedforsecurity=False).hexdigest()
            shape = str(uuid.UUID(digits)) if b"-" in token else digits
            new[token] = shape.encode()
        return new[token]

    for given in names:
        _TOKEN.sub(replace, given.encode())
    answer = _TOKEN.sub(replace, pickled)
    return answer, {replacing: token for token, replacing in new.items()}


def with_tokens(pickled: bytes, tokens: dict[bytes, bytes]) -> bytes:
    """Put back the tokens that `with_repeatable_tokens` replaced."""
    return _TOKEN.sub(lambda found: tokens.get(found[0], found[0]), pickled)


def child() -> None:
    """Call the function on the standard input, and write its result to the standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps the function's prints out of the answer
    with out:
        out.write(_answer(sys.stdin.buffer.read()))


def _answer(question: bytes) -> bytes:
    config, function = cloudpickle.loads(question)
    answer: tuple[Any, Any]
    try:
        with dask.config.set(config):
            answer = (None, function())
    except Exception as error:
        answer = (error, None)
    pickled: bytes = cloudpickle.dumps(answer)
    return pickled
