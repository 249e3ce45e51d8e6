"""Several hosts and a switch between them, on one machine: network namespaces of Linux.

Workers of one host see each other's shared memory, those of other hosts have to connect, over links
that may have a rate. The wire can be cut: packets between isolated hosts are dropped then, as a
switch that fails drops them, while all still reach the scheduler. All of it is inside of a
namespace of its own, and gone with the processes in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

#: Set in the processes that are in such a namespace.
_INSIDE = "DASK_MARSCHED_HOSTS"
_TOOLS = ("unshare", "nsenter", "ip", "bridge")
#: Where the scheduler and the clients are.
SCHEDULER_ADDRESS = "10.77.0.1"
_BRIDGE = "br-marsched"
#: Bits a second, by the words that iproute2 has for them.
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
#: Seconds in which a link may send as much as it likes: a timer's tick.
_BURST = 0.004


def is_inside() -> bool:
    """Whether this process is in a namespace in which there may be hosts."""
    return bool(os.environ.get(_INSIDE))


def _entry() -> list[str]:
    # A user that is not root is root in a namespace of users.
    return ["unshare", "--net", *([] if os.getuid() == 0 else ["--map-root-user"])]


def is_possible(*tools: str) -> bool:
    """Whether this user can have such a namespace, and has tools, on this machine."""
    if not all(map(shutil.which, (*_TOOLS, *tools))):
        return False
    tried = ["sh", "-c", f"ip link add {_BRIDGE} type bridge"]
    return subprocess.run([*_entry(), *tried], capture_output=True, check=False).returncode == 0


def be_inside() -> None:
    """Start this benchmark again in such a namespace, unless it is in one."""
    if not is_inside():
        enter([sys.executable, "-m", "benchmarks", *sys.argv[1:]])


def enter(command: Sequence[str]) -> None:
    """Replace this process by a command in such a namespace."""
    sys.stdout.flush()
    os.execvpe("unshare", [*_entry(), *command], {**os.environ, _INSIDE: "1"})


class Host:
    """One of the hosts.

    Attributes
    ----------
    address
        Its address.
    """

    def __init__(self, address: str, port: str, holder: subprocess.Popen[bytes]) -> None:
        self.address = address
        self._port = port
        self._holder = holder

    def command(self, command: Sequence[str]) -> list[str]:
        """Return what runs a command on this host."""
        return ["nsenter", "-t", str(self._holder.pid), "--net", *command]

    @property
    def network(self) -> str:
        """Its namespace, as /proc tells it."""
        return os.readlink(f"/proc/{self._holder.pid}/ns/net")

    def isolate(self, on: bool) -> None:
        """Drop what goes to, and comes from, other isolated hosts; or let it through."""
        _run("bridge", "link", "set", "dev", self._port, "isolated", "on" if on else "off")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def bits_per_second(rate: str) -> float:
    """Return the bits a second of a link's rate; ValueError if it is none."""
    found = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", rate)
    if found is None:
        raise ValueError(f"a rate is a number and {', '.join(_UNITS)}, as 1gbit, not {rate!r}")
    return float(found[1]) * _UNITS[found[2]]


@contextlib.contextmanager
def hosts(count: int, rate: str | None = None) -> Iterator[list[Host]]:
    """Give so many hosts, for processes that are `is_inside`.

    Each has a link to the scheduler and the others, that carries ``rate`` (such as ``1gbit``) in
    each direction.
    """
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", _BRIDGE, "type", "bridge")
    _run("ip", "addr", "add", f"{SCHEDULER_ADDRESS}/24", "dev", _BRIDGE)
    _run("ip", "link", "set", _BRIDGE, "up")
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: _run("ip", "link", "del", _BRIDGE))
        yield [stack.enter_context(_host(number, rate)) for number in range(count)]


@contextlib.contextmanager
def _host(number: int, rate: str | None) -> Iterator[Host]:
    port, inner, address = f"port{number}", f"eth{number}", f"10.77.0.{11 + number}"
    # It holds the namespace, and says when it is in it.
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo there; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        _run("ip", "link", "add", port, "type", "veth", "peer", "name", inner)
        _run("ip", "link", "set", inner, "netns", str(holder.pid))
        _run("ip", "link", "set", port, "master", _BRIDGE)
        _run("ip", "link", "set", port, "up")
        host = Host(address, port, holder)
        _run(*host.command(["ip", "link", "set", "lo", "up"]))
        _run(*host.command(["ip", "addr", "add", f"{address}/24", "dev", inner]))
        _run(*host.command(["ip", "link", "set", inner, "up"]))
        if rate is not None:
            _run(*_limit(port, rate))
            _run(*host.command(_limit(inner, rate)))
        yield host
    finally:
        holder.kill()
        holder.communicate()


def _limit(device: str, rate: str) -> list[str]:
    """Return the command that bounds what a device sends."""
    burst = max(128 * 1024, int(bits_per_second(rate) / 8 * _BURST))
    queue = ["tbf", "rate", rate, "burst", str(burst), "latency", "100ms"]
    return ["tc", "qdisc", "add", "dev", device, "root", *queue]
