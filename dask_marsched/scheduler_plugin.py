"""Connects a Dask scheduler to the placement engine: `MarsSchedulerPlugin`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from dask.typing import Key
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dask_marsched.api.service import ApiService
from dask_marsched.config import WORKER_PARTS, Settings
from dask_marsched.dashboard.service import DashboardService
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.client.reconnection import prepare_clients
from dask_marsched.host.contract import installed
from dask_marsched.host.graph.fusion import GraphFusion
from dask_marsched.host.graph.task_order import RepeatableOrder
from dask_marsched.host.restart.recorder import RECORDED_FROM, RECORDED_TO
from dask_marsched.host.scheduler.adapter import SchedulerAdapter
from dask_marsched.host.scheduler.cancellation import CancellationHandler
from dask_marsched.installation import own_versions
from dask_marsched.monitoring.executions import Executions
from dask_marsched.monitoring.observer import Observer
from dask_marsched.policies.assignment import AssignmentPolicy
from dask_marsched.policies.ordering import OrderingPolicy
from dask_marsched.policies.placement import PlacementPolicy
from dask_marsched.policies.withholding import WithholdingPolicy
from dask_marsched.scheduling.chosen_policies import Policies
from dask_marsched.scheduling.engine import PlacementEngine
from dask_marsched.scheduling.failover import Failover
from dask_marsched.scheduling.registration import Origin, Registration, is_same
from dask_marsched.scheduling.restarts import Restarts
from dask_marsched.scheduling.worker_registration import WorkerRegistration

logger = logging.getLogger("dask_marsched")

#: Two clients may register plugins at the same time.
_starts: WeakKeyDictionary[Scheduler, asyncio.Lock] = WeakKeyDictionary()
#: Counters that `MarsSchedulerPlugin.report` has as they are.
_COUNTED = (
    *("graphs_planned", "operands_planned", "operands_placed", "replanned", "refined"),
    *("plans_reused", "copies_dropped", "retried"),
)
#: Name of a plugin among those of its scheduler while it starts.
_STARTING = "marsched-starting"


class MarsSchedulerPlugin(SchedulerPlugin):
    """Gives a Dask scheduler Mars' placement.

    Parameters
    ----------
    assignment, ordering
        The policy of each kind: the name of a registered one, an object that follows the protocol
        in `dask_marsched.policies`, or None for the configured one.
    placement, withholding
        As these, except that None stands for `MostBytes` and `UnitQueues`.
    settings
        All options; by default the configuration (``marsched.*``) of the process that makes the
        plugin.
    fusion
        Takes precedence over the settings: ``"chains"`` or ``"subgraphs"`` to fuse tasks before
        they are scheduled, ``"off"`` not to.
    journal
        Takes precedence over the settings: the directory of the journal from which a restarted
        scheduler goes on.

    Raises
    ------
    ValueError
        The name of a policy or a setting is not accepted; the message lists what is.
    TypeError
        A policy object lacks a method of its protocol.

    Examples
    --------
    >>> client.register_plugin(MarsSchedulerPlugin())  # doctest: +SKIP
    >>> client.register_plugin(MarsSchedulerPlugin(assignment="dfs"))  # doctest: +SKIP
    """

    name = "marsched"
    idempotent = False

    def __init__(
        self,
        assignment: str | AssignmentPolicy | None = None,
        ordering: str | OrderingPolicy | None = None,
        placement: str | PlacementPolicy | None = None,
        withholding: str | WithholdingPolicy | None = None,
        settings: Settings | None = None,
        fusion: str | None = None,
        journal: str | None = None,
    ) -> None:
        self.settings = settings if settings is not None else Settings.from_config()
        if fusion is not None:
            self.settings = self.settings.replace(fusion=fusion)
        if journal is not None:
            self.settings = self.settings.replace(journal_directory=journal)
        self.policies = Policies.of(
            self.settings,
            assignment=assignment,
            ordering=ordering,
            placement=placement,
            withholding=withholding,
        )
        self._initialize(None)

    def _initialize(self, origin: Origin | None) -> None:
        """Set the state of a plugin that was not started yet."""
        self.origin = origin
        self.executions = Executions()
        self.registration: Registration | None = None
        self.duplicate_of: MarsSchedulerPlugin | None = None  # an equal one that stays in force
        self.observer: Observer | None = None
        self.cancelling: CancellationHandler | None = None
        self._engine: PlacementEngine | None = None
        self._adapter: SchedulerAdapter | None = None
        self._workers: WorkerRegistration | None = None
        self._failover: Failover | None = None
        self.restarts: Restarts | None = None
        self._api: ApiService | None = None
        self._dashboard: DashboardService | None = None
        self._reason: str | None = "not started on a scheduler"

    def __getstate__(self) -> dict[str, Any]:
        # A client pickles the plugin in its own process.
        origin = self.origin or Origin.here("client")
        prepare_clients(origin.clients, self.settings.journal_patience)
        return {"settings": self.settings, "policies": self.policies, "origin": origin}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.settings = state["settings"]
        self.policies = state["policies"]
        self._initialize(state["origin"])

    async def start(self, scheduler: Scheduler) -> None:
        """Put the policies in force; waiting tasks are planned too.

        A scheduler that fails the contract checks keeps stock scheduling; the reason is logged
        once and is part of `report`. An equal plugin in force stays, with what it has learnt. One
        that keeps a journal stays unless the new one names a journal: it knows all tasks.
        """
        async with _starts.setdefault(scheduler, asyncio.Lock()):
            try:
                await self._start(scheduler, scheduler.plugins.get(self.name))
            except BaseException:  # Dask does not add it then
                self.stop()
                raise
            finally:
                scheduler.plugins.pop(_STARTING, None)

    async def _start(self, scheduler: Scheduler, before: Any) -> None:
        origin = self.origin or Origin.here("scheduler")
        clients = set(origin.clients)
        replaced = getattr(before, "registration", None)
        self.registration = Registration(
            origin, time(), self.settings, self.policies.names(), replaced
        )
        if isinstance(before, MarsSchedulerPlugin) and before is not self:
            if self._leaves(before, self.registration):
                return
            if before.restarts is not None:
                clients |= before.restarts.clients
            before.stop()
            await before.workers_told()
        self.registration.log_changes()
        if not self.settings.enabled:
            self._reason = "switched off by marsched.enabled"
            return
        if not self._install(scheduler, clients):
            return
        to_workers = self.settings
        if self.restarts is not None and not self.restarts.kept:
            to_workers = to_workers.replace(journal_directory=None)
        self._workers = WorkerRegistration(scheduler, to_workers)
        if before is not self:
            # Dask adds the plugin when this has ended; its hooks are needed meanwhile.
            scheduler.plugins[_STARTING] = self
        await self._workers.add()

    def _leaves(self, before: MarsSchedulerPlugin, registration: Registration) -> bool:
        """Leave a plugin in force that does the same, or keeps a journal if this one names none."""
        same, restarts = is_same(before, self), before.restarts
        kept = restarts is not None and restarts.kept and self.settings.journal_directory is None
        if before.why_not_active() is not None or not (same or kept):
            return False
        self.duplicate_of = before
        if same:
            before.registration = registration
        else:
            registration.log_refusal()
        if restarts is not None:
            restarts.invite(registration.origin.clients)
        return True

    def _install(self, scheduler: Scheduler, clients: set[str]) -> bool:
        """Install all parts on the scheduler; False if it fails the contract checks."""
        self._engine = engine = PlacementEngine(scheduler, self.policies, self.settings)
        mode, known = self.settings.fusion, engine.planner.known_nbytes
        fusion = GraphFusion(scheduler, engine.counters, known, subgraphs=mode == "subgraphs")
        self._adapter = SchedulerAdapter(
            scheduler,
            engine,
            self,
            removed=self.stop,
            fusion=None if mode == "off" else fusion,
            order=RepeatableOrder(scheduler, engine.counters, engine.planner.prepare),
            failed=lambda: self._failover.uninstall() if self._failover else None,
        )
        try:
            self._adapter.install()
        except RuntimeError as misfit:
            self._reason = str(misfit)
            self._engine = self._adapter = None
            logger.warning("%s", misfit)
            return False
        self._reason = None
        self._failover = Failover(scheduler, self.settings, engine, time)
        self._install_optional_parts(scheduler, engine, self._failover)
        if self.settings.journal_directory is not None:
            self.restarts = Restarts(scheduler, self.settings, engine, self._arrived)
            self.restarts.start(clients)
            if self.observer is not None:
                self.observer.outages = self.restarts.outages
        engine.workers_changed()
        waiting = [ts for ts in scheduler.tasks.values() if ts.state in ("waiting", "queued")]
        if waiting:
            engine.plan(waiting)
        self._arrived(scheduler.tasks.values())
        return True

    def _arrived(self, tasks: Iterable[TaskState]) -> None:
        if self.observer is not None:
            self.observer.arrived(tasks)

    def _install_optional_parts(
        self, scheduler: Scheduler, engine: PlacementEngine, failover: Failover
    ) -> None:
        caught = engine.counters.caught
        if self.settings.observer_enabled:
            names, recoveries = self.policies.names(), failover.recoveries.report
            self.observer = Observer(scheduler, engine.counters, time, names, recoveries)
            engine.observe(self.observer)
        if self.settings.interrupt:
            self.cancelling = installed(CancellationHandler(scheduler))
        if self.settings.api_enabled:
            self._api = ApiService(scheduler, self, caught)
            self._api.install()
        if self.observer is not None and self.settings.dashboard_pages:
            self._dashboard = DashboardService(scheduler, caught)
            self._dashboard.install()

    def stop(self) -> None:
        """Restore the scheduler, and its workers in the background. Idempotent."""
        self._restore_scheduler()
        if self._workers is not None:
            self._workers.remove()

    def _restore_scheduler(self) -> None:
        first: tuple[Any, ...] = (self.restarts, self._adapter, self.cancelling, self._failover)
        for part in (*first, self._api, self._dashboard, self.observer):
            try:
                if part is not None:
                    part.uninstall()
            except Exception:  # the other parts are removed all the same
                logger.exception("A part of the plugin was not removed as it should be")
        if self._adapter is not None:
            self._reason = "removed from the scheduler"

    async def workers_told(self) -> None:
        """Wait until the workers have installed or removed their plugin."""
        if self._workers is not None:
            await self._workers.done()

    async def close(self) -> None:
        """Restore the scheduler, which closes."""
        self._restore_scheduler()

    def restart(self, scheduler: Scheduler) -> None:
        """Drop all plans, as the cluster restarts."""
        self.executions.clear()
        if self.restarts is not None:
            self.restarts.restarted()
        if self._failover is not None:
            self._failover.recoveries.clear()
        if self._engine is not None:
            self._engine.clear()
        if self.observer is not None:
            self.observer.clear()

    def update_graph(
        self, scheduler: Scheduler, *, client: str, keys: set[Key], tasks: list[Key], **kwargs: Any
    ) -> None:
        """Plan a graph that arrived."""
        self.executions.graph_arrived(client, time(), len(tasks), keys)
        if self._engine is not None:
            if self.observer is not None:
                self.observer.arriving = self.executions.graphs[-1].number
            if self.restarts is not None:
                self.restarts.graph_created(tasks, keys)
            notes = kwargs.get("annotations", {})
            fails = self._engine.failure is not None
            if not fails and self._engine.plan_prepared(len(tasks), bool(notes.keys() - {"span"})):
                return
            known = scheduler.tasks
            touched = [known[key] for key in tasks]
            self._engine.plan([known[key] for key in keys if key in known], touched)
            if self.observer is not None:
                self.observer.arrived(touched)

    def transition(
        self, key: Key, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Pass a transition on to engine, failover, executions and observer."""
        if self._engine is None:
            return
        ts = self._engine.scheduler.tasks[key]
        if self.observer is not None:
            self.observer.moved(ts, finish, stimulus_id)
        if self.restarts is not None and (start in RECORDED_FROM or finish in RECORDED_TO):
            self.restarts.moved(ts, start, finish)
        if finish in ("waiting", "queued") and stimulus_id.startswith("update-graph"):
            return  # of no interest but to the observer, and there is one for each new task
        if self._failover is not None:
            startstops = kwargs.get("startstops") or ()
            self._failover.moved(ts, start, finish, stimulus_id, startstops)
        if finish == "memory":
            if start == "processing":
                self._engine.finished(ts)
                now = time()
                self.executions.finished(key, kwargs["worker"], now, kwargs["startstops"])
                if self.observer is not None and now >= self.observer.due:
                    self.observer.sample(now)
        elif finish == "processing":
            self._engine.sent(ts)
            self.executions.sent(key, time())
        elif start == "processing":
            self.executions.left(key)
        if finish == "forgotten":
            self._engine.forgotten(ts)
        elif finish == "erred":
            self._engine.failed(ts)

    def add_worker(self, scheduler: Scheduler, worker: str) -> Awaitable[Any] | None:
        """Send to a worker often, and take what it holds."""
        if self._adapter is not None:
            self._adapter.worker_joined(worker)
        return self.restarts.worker_came(worker) if self.restarts is not None else None

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Pass the loss of a worker on to adapter, failover, journal and observer."""
        if self.restarts is not None:
            self.restarts.worker_left(worker)
        if self._adapter is not None and self._adapter.installed:
            self._adapter.worker_left()
        if self._failover is not None:
            self._failover.worker_left(worker, stimulus_id)
        if self.observer is not None:
            self.observer.worker_left(worker)

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Leave out dead workers whose results are being adopted."""
        return workers if self._failover is None else self._failover.without_dead(workers)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take note of the events by which workers announce results in shared memory."""
        if self._failover is not None:
            self._failover.log_event(topic, msg)

    def kept(self) -> set[Key]:
        """Return the keys of the results that outlive their worker's process."""
        return self._failover.kept() if self._failover is not None else set()

    def retrying(self) -> set[Key]:
        """Return the keys of failed operands that wait for a retry."""
        return self._adapter.retrying() if self._adapter is not None else set()

    def _dashboard_report(self) -> dict[str, Any]:
        if self._dashboard is not None:
            return self._dashboard.report()
        off = "observer.enabled" if not self.settings.observer_enabled else "dashboard.pages"
        return {"pages": [], "reason": self._reason or f"switched off by marsched.{off}"}

    def why_not_active(self) -> str | None:
        """Return why this plugin changes nothing on a scheduler, None where it does."""
        if self._reason is None and self._adapter is not None and not self._adapter.installed:
            return (self._engine and self._engine.failure) or "removed from the scheduler"
        return self._reason

    def report(self) -> dict[str, Any]:
        """Return the work since the plugin was started, as plain values for JSON.

        Returns
        -------
        dict
            ``active``, and the ``reason`` if it is not; ``policies``, names by kind;
            counts ``graphs_planned``, ``operands_planned``, ``operands_placed``, ``replanned``,
            ``refined``, ``plans_reused``, ``copies_dropped``, ``retried``;
            ``recalled_operands``, taken back from the queue of a stuck worker;
            ``second_runs`` of stragglers and ``second_runs_won``; ``fusion``: its ``mode``, and how
            many ``operands`` were fused ``into`` how many; ``withheld``, how withheld operands came
            to their worker; ``left_to_dask``, decisions by reason; ``exact_sizes``, the share of
            the planned operands whose size was known exactly before they ran; ``recoveries``, see
            `Recoveries.report`; ``journal``, see `Restarts.report`; ``worker_parts`` that are on;
            ``api``, its ``path`` or the ``reason`` why it is off; ``dashboard``, its ``pages`` or
            the ``reason``; ``exceptions`` caught, by hook, and the ``last_exception``;
            ``registered``, see `Registration.report`; ``versions``.
        """
        engine, registered = self._engine, None
        counters = engine.counters if engine is not None else Counters()
        if engine is not None and self.registration is not None:
            registered = self.registration.report(engine.scheduler.clients)
        planned = counters.operands_planned
        reason = self.why_not_active()
        return {
            "active": reason is None,
            "reason": reason,
            "policies": self.policies.names(),
            **{name: getattr(counters, name) for name in _COUNTED},
            **(self._failover.report() if self._failover is not None else {"recoveries": {}}),
            "withheld": dict(counters.withheld),
            "fusion": {
                "mode": self.settings.fusion,
                "operands": counters.fused,
                "into": counters.fused_into,
            },
            "left_to_dask": dict(counters.left_to_dask),
            "exact_sizes": counters.exact_sizes / planned if planned else 0.0,
            "journal": self.restarts.report() if self.restarts is not None else None,
            "api": self._api.report() if self._api is not None else {},
            "dashboard": self._dashboard_report(),
            "worker_parts": [
                part
                for part, (on, _) in WORKER_PARTS.items()
                if self._workers is not None and getattr(self.settings, on)
            ],
            **counters.failures(),
            "registered": registered,
            "versions": own_versions(),
        }
