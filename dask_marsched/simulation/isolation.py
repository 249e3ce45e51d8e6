"""Where a simulation runs: here, in a thread of its own, or in a process of its own."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import cloudpickle
import dask

T = TypeVar("T")

#: The word before it.
_WORD = re.compile(rb"[A-Za-z_-]*\Z")

#: What Dask puts into a name: a hash of contents, or a random number.
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

    Sets of strings are iterated in an order that follows from the strings and from the process's
    hash seed, and so do some of Dask's choices. A process of its own has the hash seed that is
    asked for, and in it strings are others where that is asked for.

    Parameters
    ----------
    function
        What to call; pickled if another process is to call it.
    isolated
        True for another process. False for this one, with all names as they are. None for
        another one unless this one has its hash seed (``PYTHONHASHSEED``).
    names
        Names in what the function holds, in an order that is the same in every process: their
        tokens, and all others, are replaced (`with_repeatable_tokens`). None: they are kept.
    seed
        The hash seed of that process.
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
    """Call a function in this process; in a notebook, say, it needs a loop of its own."""
    return _in_thread(function) if _loop_is_running() else function()


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_thread(function: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="marsched-twin")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


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
    """Replace Dask's tokens in pickled collections by others that do not change from run to run.

    Dask names what it cannot hash by random numbers: unseeded random arrays, impure delayed
    functions, some indices; what it can hash, by hashes that other versions, and other places of
    the same code, make others. Names decide ties, in ``dask.order`` as in every set of keys. So
    each token becomes one that tells only how many others came before it behind the same word. It
    is as long as the token was: the pickle stays one.

    Which come before tell the names, as far as they go: in a pickle it may follow from the hash
    seed, where a token is first found in a set.

    Parameters
    ----------
    pickled
        The pickle.
    names
        Names with tokens, in an order that is the same in every process.

    Returns
    -------
    bytes, dict
        The pickle, and the tokens that were replaced, by those that replace them.
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
    """Put the tokens back that `with_repeatable_tokens` replaced."""
    return _TOKEN.sub(lambda found: tokens.get(found[0], found[0]), pickled)


def child() -> None:
    """Call the function that stands on the standard input, and answer on the standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints must not mix with the answer
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
