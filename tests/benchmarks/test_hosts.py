"""Hosts as network namespaces, with links that have a rate and can be cut."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.command import bench
from benchmarks.frisky import cluster as frisky
from benchmarks.hosts import network_namespaces

needs_namespaces = pytest.mark.skipif(
    not network_namespaces.is_possible(), reason="no namespaces of networks here"
)

#: In a namespace: two hosts that reach each other, do not while the wire is cut, and do again.
WIRE = """
import socket, subprocess, sys
from benchmarks.hosts.network_namespaces import SCHEDULER_ADDRESS, hosts

def reaches(host, address):
    code = (
        "import socket, sys\\n"
        "s = socket.socket()\\n"
        "s.settimeout(0.5)\\n"
        f"sys.exit(s.connect_ex(({address!r}, 9)))"
    )
    # Nobody listens there: refused where packets arrive.
    return subprocess.run(host.command([sys.executable, "-c", code])).returncode == 111

with hosts(2) as (a, b):
    found = [reaches(a, b.address), reaches(b, a.address)]
    for host in (a, b):
        host.isolate(True)
    found += [reaches(a, b.address), reaches(b, a.address), reaches(a, SCHEDULER_ADDRESS)]
    for host in (a, b):
        host.isolate(False)
    print(*found, reaches(a, b.address), len({a.network, b.network}))
"""

#: In a namespace: what both ends of a link may send.
LINK = """
import subprocess
from benchmarks.hosts.network_namespaces import hosts

with hosts(1, "200mbit") as (host,):
    for command in (["tc", "qdisc", "show", "dev", "port0"], host.command(["tc", "qdisc"])):
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        print(shown.split("rate ")[1].split()[0])
"""


def told(program):
    """Return the words that a program prints in such a namespace."""
    # What replaces a process is run in one of its own.
    enter = "import sys; from benchmarks.hosts.network_namespaces import enter; enter(sys.argv[1:])"
    command = [sys.executable, "-c", enter, sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return ended.stdout.split()


@pytest.mark.extended
@needs_namespaces
def test_the_wire_can_be_cut():
    assert not network_namespaces.is_inside()
    assert told(WIRE) == ["True", "True", "False", "False", "True", "True", "2"]


@pytest.mark.extended
@needs_namespaces
def test_links_have_the_rate_in_both_directions():
    assert told(LINK) == ["200Mbit", "200Mbit"]


@pytest.mark.parametrize(
    ("rate", "bits"), [("1gbit", 1e9), ("2.5gbit", 2.5e9), ("100mbit", 1e8), ("1kbit", 1e3)]
)
def test_rates_are_written_as_iproute2_has_them(rate, bits):
    assert network_namespaces.bits_per_second(rate) == bits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--hosts", "2", "--rate", "fast"],
            "a rate is a number and kbit, mbit, gbit, as 1gbit, not 'fast'",
        ),
        (["--hosts", "2", "--against", "frisky"], "--against frisky runs on one host"),
        (["--uneven"], "--uneven needs --hosts"),
    ],
)
def test_wrong_options_are_refused(monkeypatch, options, message):
    # Refused before Frisky is downloaded.
    monkeypatch.setattr(frisky, "environment", lambda python: pytest.fail("made an environment"))
    ended = CliRunner().invoke(bench, options)
    assert ended.exit_code == 2
    assert message in ended.output
