"""How ``dask marsched supervise`` ends, with a scheduler that only waits."""

import contextlib
import os
import re
import select
import signal
import sys

import pytest

from tests.processes import START_TIMEOUT, running

# The scheduler tells its process, and how it was ended: by itself it does nothing else.
_SCHEDULER = """
import os, signal
def end(number, frame):
    print(f"got {number}", flush=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
print(f"scheduler {os.getpid()} {signal.getsignal(signal.SIGHUP).name}", flush=True)
signal.pause()
"""
_SUPERVISOR = """
import os, signal, subprocess, sys
from dask_marsched import supervisor
supervisor.command = lambda arguments: [sys.executable, "-c", arguments[0]]
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
{}
raise SystemExit(supervisor.supervise(sys.argv[1:]))
"""


@pytest.fixture
def supervised():
    """Start a supervisor of a program, after some more code."""
    begun = []

    def start_supervisor(program=_SCHEDULER, more=""):
        begun.append(start(sys.executable, "-c", _SUPERVISOR.format(more), program))
        return begun[-1]

    with running() as start:
        yield start_supervisor
        for supervisor in begun:  # an orphan would hold the output, and the test would hang
            for pid in re.findall(r"scheduler (\d+)", supervisor.output):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def started(supervisor):
    return int(supervisor.wait_for(r"scheduler (\d+)")[1])


def wait_until_gone(pid):
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            assert select.select([process], [], [], START_TIMEOUT)[0]
        finally:
            os.close(process)


@pytest.mark.parametrize(
    ("sent", "passed_on"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_a_signal_ends_the_scheduler_and_the_supervisor(supervised, sent, passed_on):
    supervisor = supervised()
    pid = started(supervisor)
    assert supervisor.send_signal(sent) == 128 + passed_on
    assert f"got {passed_on:d}" in supervisor.output
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nohup_is_heeded(supervised):
    supervisor = supervised(more="signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    started(supervisor)
    supervisor.wait_for("SIG_IGN")
    os.kill(supervisor.pid, signal.SIGHUP)
    assert supervisor.send_signal(signal.SIGINT) == 128 + signal.SIGINT


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells of a parent's death")
def test_the_scheduler_of_a_killed_supervisor_ends(supervised):
    supervisor = supervised()
    pid = started(supervisor)
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait_for(f"got {signal.SIGTERM:d}", timeout=10)
    wait_until_gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells of a parent's death")
def test_a_supervisor_that_dies_before_its_scheduler_has_begun(supervised):
    """The new process finds itself an orphan, where nothing tells it any more."""
    supervisor = supervised(
        more="""
us = os.getpid()
def kill(*args):
    os.kill(us, signal.SIGKILL)
    while os.getppid() == us:
        pass
class Library:
    prctl = staticmethod(kill)
supervisor.ctypes.CDLL = lambda name: Library
"""
    )
    assert supervisor.wait() == -signal.SIGKILL
    assert "scheduler" not in supervisor.output


def test_a_signal_before_the_scheduler_has_begun_ends_it(supervised):
    """It came when there was no process to pass it on to."""
    supervisor = supervised(
        more="""
start = subprocess.Popen
def signalled(*args, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return start(*args, **options)
supervisor.subprocess.Popen = signalled
"""
    )
    assert supervisor.wait() == 128 + signal.SIGTERM


def test_exit_statuses(supervised):
    assert supervised("pass").wait() == 0
    given_up = supervised("import os; os.kill(os.getpid(), 9)")
    assert given_up.wait() == 128 + signal.SIGKILL
    assert "died 5 times within a minute: given up" in given_up.output
    assert supervised("raise SystemExit(3)").wait() == 3


@pytest.mark.extended
def test_a_wrong_command_line_is_not_tried_again(supervised):
    wrong = supervised("raise SystemExit(2)")
    assert wrong.wait() == 2
    assert "started again" not in wrong.output
