"""Asks a scheduler and its workers for the state of the plugin: `Status`."""

from __future__ import annotations

import asyncio
import dataclasses
import platform
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import distributed

from dask_marsched.installation import how_to_install, own_versions
from dask_marsched.monitoring.probes import scheduler_probe, worker_probe
from dask_marsched.monitoring.status_text import scheduler_facts, status_view, worker_text


@dataclasses.dataclass(frozen=True)
class Status:
    """The state of the plugin on a cluster; ``str()`` of it is a text for people.

    Attributes
    ----------
    scheduler : str
        Address of the scheduler.
    active : bool
        Whether the plugin decides on that scheduler.
    reason : str or None
        Why it does not.
    policies : dict
        Name of the policy in use, by kind.
    graphs_planned, operands_planned, operands_placed : int
        Work done since the plugin was registered.
    exact_sizes : float or None
        Share (0 to 1) of the planned operands whose size was known before they ran.
    left_to_dask : dict
        Number of decisions left to Dask, by reason.
    exceptions : dict
        Number of exceptions caught in the plugin's hooks, by hook. Each is a defect.
    last_exception : str or None
        The last of these.
    details : dict
        The other entries of `MarsSchedulerPlugin.report`.
    versions : dict
        Versions of dask_marsched, distributed, dask and python by process: ``"client"``,
        ``"scheduler"`` and each worker's address. None if a package is missing or its version
        unknown.
    workers : dict
        Report of the plugin on each worker, by address; see `MarsWorkerPlugin.report`.
    workers_lacking : dict
        Addresses of the workers without dask_marsched, each with the parts that are off there.
    unreachable : dict
        Processes that could not be asked, with the reason.
    mismatches : tuple of str
        Versions that differ from the scheduler's.
    """

    scheduler: str
    active: bool
    reason: str | None
    policies: dict[str, str] = dataclasses.field(default_factory=dict)
    graphs_planned: int = 0
    operands_planned: int = 0
    operands_placed: int = 0
    exact_sizes: float | None = None
    left_to_dask: dict[str, int] = dataclasses.field(default_factory=dict)
    exceptions: dict[str, int] = dataclasses.field(default_factory=dict)
    last_exception: str | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    versions: dict[str, dict[str, str | None]] = dataclasses.field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    workers_lacking: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    unreachable: dict[str, str] = dataclasses.field(default_factory=dict)
    mismatches: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything in plain types, ready for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        state = "active" if self.active else "not active"
        lines = [f"dask_marsched on the scheduler {self.scheduler}: {state}"]
        facts = list(scheduler_facts(self.to_dict()))
        facts += [("not reached", f"{name}: {why}") for name, why in self.unreachable.items()]
        lines += [f"  {label:<18}{text}" for label, text in facts]
        lines += [f"  worker {name}: {worker_text(found)}" for name, found in self.workers.items()]
        for address, parts in self.workers_lacking.items():
            off = ", ".join(parts) or "nothing (placement needs no code on workers)"
            lines.append(f"  not installed on  {address}; off there: {off}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return status_view(self.to_dict())


def not_connected(client: distributed.Client) -> Status:
    """Return the status where a client has no scheduler."""
    return Status("(none)", False, f"the client is {client.status}, not connected")


async def ask(client: distributed.Client, timeout: float) -> Status:
    """Return the status of the scheduler of a client; ``timeout`` is in seconds."""
    if client.status != "running" or client.scheduler is None:
        return not_connected(client)
    address = str(client.scheduler.address)
    here = {"client": dict[str, str | None](own_versions())}
    try:
        info = await asyncio.wait_for(client.scheduler.versions(), timeout)
        if (reason := _why_not_asked(_python(info["packages"]))) is not None:
            return Status(address, False, reason, versions=here)
        answer = await asyncio.wait_for(client.run_on_scheduler(scheduler_probe()), timeout)
    except asyncio.TimeoutError:
        reason = f"the scheduler did not answer within {timeout:g} s"
        return Status(address, False, reason, versions=here)
    except Exception as error:  # a blocked handler, a lost connection, an error there
        reason = f"the scheduler cannot be asked: {type(error).__name__}: {error}"
        return Status(address, False, reason, versions=here)
    versions = {**here, "scheduler": _versions(answer["version"], info["packages"])}
    answers, unreachable = await _ask_workers(client, answer["workers"], timeout)
    for worker, reply in answers.items():
        versions[worker] = _versions(reply["version"], answer["workers"][worker])
    fields = _plugin_fields(answer)
    parts = tuple(fields.get("details", {}).get("worker_parts", ()))
    lacking = {w: parts for w, reply in answers.items() if not reply["installed"]}
    reports = {w: reply["report"] for w, reply in answers.items() if reply["report"]}
    for worker, reply in answers.items():
        # The package is there, in a version that could not make our plugin.
        if parts and reply["installed"] and not reply["report"]:
            reports[worker] = {
                **dict.fromkeys(parts),
                "reasons": dict.fromkeys(parts, "its dask_marsched could not make the plugin"),
            }
    return Status(
        scheduler=address,
        versions=versions,
        workers=reports,
        workers_lacking=lacking,
        unreachable=unreachable,
        mismatches=_mismatches(versions),
        **fields,
    )


def _plugin_fields(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of `Status` that describe the plugin."""
    if not answer["installed"]:
        reason = (
            f"dask_marsched is not installed on the scheduler: run {how_to_install()}, in the "
            "scheduler's environment, and restart it"
        )
        return {"active": False, "reason": reason}
    report = answer["report"]
    if report is None:
        reason = "not registered on this scheduler: " + (
            f"its preload failed: {answer['preload_failure']}"
            if answer["preload_failure"]
            else "call client.register_plugin(dask_marsched.MarsSchedulerPlugin()) or start the "
            "scheduler with --preload dask_marsched"
        )
        return {"active": False, "reason": reason}
    names = {field.name for field in dataclasses.fields(Status)} - {"versions", "details"}
    fields = {key: value for key, value in report.items() if key in names}
    fields["details"] = {
        key: value for key, value in report.items() if key not in names and key != "versions"
    }
    return fields


async def _ask_workers(
    client: distributed.Client, workers: Mapping[str, Mapping[str, Any]], timeout: float
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Ask each worker on its own, so that one that hangs does not hide the others."""
    answers: dict[str, dict[str, Any]] = {}
    unreachable: dict[str, str] = {}

    async def ask(worker: str) -> None:
        if (reason := _why_not_asked(_python(workers[worker]))) is not None:
            unreachable[worker] = reason
            return
        run: Callable[..., Awaitable[dict[str, Any]]] = client.run
        try:
            replies = await asyncio.wait_for(
                run(worker_probe(), workers=[worker], on_error="return"), timeout
            )
        except asyncio.TimeoutError:
            unreachable[worker] = f"did not answer within {timeout:g} s"
            return
        except Exception as error:  # it left the cluster meanwhile
            unreachable[worker] = f"{type(error).__name__}: {error}"
            return
        reply = replies.get(worker)
        if isinstance(reply, dict):
            answers[worker] = reply
        else:
            unreachable[worker] = repr(reply)

    await asyncio.gather(*(ask(worker) for worker in workers))
    return {w: answers[w] for w in workers if w in answers}, unreachable


def _mismatches(versions: Mapping[str, Mapping[str, str | None]]) -> tuple[str, ...]:
    wanted = versions["scheduler"]
    # Missing packages are reported elsewhere.
    return tuple(
        f"{package} is {own[package]} on {process}, {theirs} on the scheduler"
        for process, own in versions.items()
        for package, theirs in wanted.items()
        if None not in (theirs, own[package]) and theirs != own[package]
    )


def _versions(installed: str | None, packages: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        "dask_marsched": installed,
        "distributed": packages.get("distributed"),
        "dask": packages.get("dask"),
        "python": _python(packages),
    }


def _python(packages: Mapping[str, Any]) -> str:
    # distributed reports it as "3.11.7.final.0"
    return ".".join(str(packages.get("python", "unknown")).split(".")[:3])


def _why_not_asked(python: str) -> str | None:
    """Return why a process of this Python cannot be asked, None if it can.

    The probes' byte code is sent by value and fits the same minor version only.
    """
    own = platform.python_version()
    if python.split(".")[:2] == own.split(".")[:2]:
        return None
    return f"cannot be asked: Python {python} there, {own} here"
