"""Processes that are forked from this one."""

import os
import pickle
import signal
import warnings


class Child:
    """A forked process that calls a function once it is told to."""

    def __init__(self, function) -> None:
        told, self._tell = os.pipe()
        self._answer, answer = os.pipe()
        with warnings.catch_warnings():
            # of Python 3.12: this process has threads; none of them has a lock that is needed
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid == 0:
            try:
                signal.alarm(60)  # it may hang, or its parent end
                os.read(told, 1)
                os.write(answer, pickle.dumps(function()))
            finally:
                os._exit(0)
        os.close(told)
        os.close(answer)

    def call(self) -> object:
        """Call the function there; return what it returns when the process has ended."""
        os.write(self._tell, b"x")
        os.close(self._tell)
        os.waitpid(self._pid, 0)
        with open(self._answer, "rb") as answer:
            return pickle.load(answer)
