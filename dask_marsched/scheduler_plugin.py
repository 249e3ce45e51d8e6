"""`MarsSchedulerPlugin`: Dask's hooks, handed to the placement engine."""

from __future__ import annotations

import logging
from typing import Any

from dask.typing import Key
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.metrics import time
from distributed.scheduler import Scheduler

from dask_marsched.api.service import ApiService
from dask_marsched.config import Settings
from dask_marsched.dashboard.service import DashboardService
from dask_marsched.fallbacks.counters import Counters
from dask_marsched.host.graph.compression import GraphCompression
from dask_marsched.host.graph.task_order import RepeatableOrder
from dask_marsched.host.scheduler.adapter import SchedulerAdapter
from dask_marsched.host.scheduler.cancellation import CancellationHandler
from dask_marsched.installation import own_versions
from dask_marsched.monitoring.executions import Executions
from dask_marsched.monitoring.observer import Observer
from dask_marsched.policies import registry
from dask_marsched.policies.assignment import AssignmentPolicy
from dask_marsched.policies.ordering import OrderingPolicy
from dask_marsched.policies.placement import PlacementPolicy
from dask_marsched.policies.withholding import WithholdingPolicy
from dask_marsched.scheduling.engine import PlacementEngine
from dask_marsched.scheduling.failover import Failover
from dask_marsched.scheduling.planner import Policies
from dask_marsched.scheduling.registration import Origin, Registration, same
from dask_marsched.scheduling.worker_registration import WorkerRegistration

logger = logging.getLogger("dask_marsched")

_PROTOCOLS: dict[str, type] = {
    "assignment": AssignmentPolicy,
    "ordering": OrderingPolicy,
    "placement": PlacementPolicy,
    "withholding": WithholdingPolicy,
}


class MarsSchedulerPlugin(SchedulerPlugin):
    """Gives a Dask scheduler Mars' placement.

    Parameters
    ----------
    assignment, ordering, placement, withholding
        The policy of each kind: the name of a registered one, an object of one's own that
        follows the protocol in `dask_marsched.policies`, or None for what the configuration
        says.
    settings
        Thresholds and names; by default from the configuration (``marsched.*``) of the process
        that makes the plugin.
    fusion
        ``"chains"`` or ``"subgraphs"`` to join tasks before they are scheduled, ``"off"`` not
        to; None for what the settings say.

    Raises
    ------
    ValueError
        A policy's name or a setting is not accepted; the message lists what is.
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
    ) -> None:
        self.settings = settings if settings is not None else Settings.from_config()
        if fusion is not None:
            self.settings = self.settings.replace(fusion=fusion)
        given = {
            "assignment": assignment,
            "ordering": ordering,
            "placement": placement,
            "withholding": withholding,
        }
        named = vars(self.settings)
        self.policies = Policies(
            **{
                kind: _policy(kind, named[kind] if policy is None else policy)
                for kind, policy in given.items()
            }
        )
        self.executions = Executions()
        self.origin: Origin | None = None
        self.registration: Registration | None = None
        self.twin: MarsSchedulerPlugin | None = None  # one in force that does the same
        self.observer: Observer | None = None
        self._engine: PlacementEngine | None = None
        self._adapter: SchedulerAdapter | None = None
        self._workers: WorkerRegistration | None = None
        self._failover: Failover | None = None
        self.cancelling: CancellationHandler | None = None
        self._api: ApiService | None = None
        self._dashboard: DashboardService | None = None
        self._reason: str | None = "not started on a scheduler"

    def __getstate__(self) -> dict[str, Any]:
        # Where a client registers it: in the client's process.
        origin = self.origin or Origin.here("client")
        return {"settings": self.settings, "policies": self.policies, "origin": origin}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.settings = state["settings"]
        self.policies = state["policies"]
        self.origin, self.registration, self.twin = state["origin"], None, None
        self.executions = Executions()
        self._engine = self._adapter = self._workers = self._failover = None
        self.cancelling = self.observer = None
        self._api = self._dashboard = None
        self._reason = "not started on a scheduler"

    # -- life cycle ------------------------------------------------------------------------

    async def start(self, scheduler: Scheduler) -> None:
        """Put the policies in force; tasks that wait already are planned too.

        A scheduler that is not as expected keeps stock scheduling; the reason is logged once
        and stands in `report`. One that does the same already stays, with what it has learnt.
        """
        before = scheduler.plugins.get(self.name)
        origin = self.origin or Origin.here("scheduler")
        replaced = getattr(before, "registration", None)
        self.registration = Registration(
            origin, time(), self.settings, self.policies.names(), replaced
        )
        if isinstance(before, MarsSchedulerPlugin) and before is not self:
            if before.why_not_active() is None and same(before, self):
                self.twin, before.registration = before, self.registration
                return
            before.stop()
            await before.workers_told()
        self.registration.tell()
        if not self.settings.enabled:
            self._reason = "switched off by marsched.enabled"
            return
        self._engine = PlacementEngine(scheduler, self.policies, self.settings)
        self._adapter = SchedulerAdapter(
            scheduler,
            self._engine,
            self,
            removed=self.stop,
            compression=self._compression(scheduler, self._engine.counters),
            order=RepeatableOrder(scheduler, self._engine.counters),
            failed=self._leave_losses,
        )
        try:
            self._adapter.install()
        except RuntimeError as misfit:
            self._reason = str(misfit)
            self._engine = self._adapter = None
            logger.warning("%s", misfit)
            return
        self._reason = None
        self._failover = Failover(scheduler, self.settings, self._engine, time)
        self._observe(scheduler, self._engine, self._failover)
        if self.settings.interrupt:
            self.cancelling = CancellationHandler(scheduler)
            self.cancelling.install()
        if self.settings.api_enabled:
            self._api = ApiService(scheduler, self, self._engine.counters.caught)
            self._api.install()
        if self.observer is not None and self.settings.dashboard_pages:
            self._dashboard = DashboardService(scheduler, self._engine.counters.caught)
            self._dashboard.install()
        self._engine.workers_changed()
        waiting = [ts for ts in scheduler.tasks.values() if ts.state in ("waiting", "queued")]
        if waiting:
            self._engine.plan(waiting)
        if self.observer is not None:
            self.observer.arrived(scheduler.tasks.values())
        self._workers = WorkerRegistration(scheduler, self.settings)
        await self._workers.add()

    def _observe(self, scheduler: Scheduler, engine: PlacementEngine, failover: Failover) -> None:
        if self.settings.observer_enabled:
            self.observer = Observer(
                scheduler,
                engine.counters,
                time,
                self.policies.names(),
                failover.recoveries.report,
            )
            engine.observe(self.observer)

    def _compression(self, scheduler: Scheduler, counters: Counters) -> GraphCompression | None:
        if self.settings.fusion == "off":
            return None
        return GraphCompression(
            scheduler,
            subgraphs=self.settings.fusion == "subgraphs",
            counters=counters,
        )

    def stop(self) -> None:
        """Restore the scheduler, and its workers in the background. Idempotent."""
        self._restore_scheduler()
        if self._workers is not None:
            self._workers.remove()

    def _restore_scheduler(self) -> None:
        if self._adapter is not None:
            self._adapter.uninstall()
            self._reason = "removed from the scheduler"
        for part in (self.cancelling, self._failover, self._api, self._dashboard):
            if part is not None:
                part.uninstall()
        if self.observer is not None:
            self.observer.close()

    def _leave_losses(self) -> None:
        """Placement has failed: what is lost is stock Dask's business, too."""
        if self._failover is not None:
            self._failover.uninstall()

    def _worker_parts(self) -> list[str]:
        parts = {
            "quota": self.settings.quota_enabled,
            "shared": self.settings.store_shared,
            "adoption": self.settings.adopts,
            "interrupts": self.settings.interrupt,
            "kernels": self.settings.kernels_enabled,
        }
        return [name for name, on in parts.items() if on]

    async def workers_told(self) -> None:
        """Wait until the workers know what was last said to them."""
        if self._workers is not None:
            await self._workers.done()

    async def close(self) -> None:
        """Restore the scheduler: it closes."""
        self._restore_scheduler()

    def restart(self, scheduler: Scheduler) -> None:
        """Drop all plans: the cluster restarts."""
        self.executions.clear()
        if self._failover is not None:
            self._failover.clear()
        if self._engine is not None:
            self._engine.clear()
        if self.observer is not None:
            self.observer.clear()

    # -- hooks -----------------------------------------------------------------------------

    def update_graph(
        self, scheduler: Scheduler, *, client: str, keys: set[Key], tasks: list[Key], **kwargs: Any
    ) -> None:
        """Plan a graph that arrived."""
        self.executions.graph_arrived(client, time(), len(tasks), keys)
        if self._engine is not None:
            known = scheduler.tasks
            touched = [known[key] for key in tasks]
            if self.observer is not None:
                self.observer.arriving = self.executions.graphs[-1].number
            self._engine.plan([known[key] for key in keys if key in known], touched)
            if self.observer is not None:
                self.observer.arrived(touched)

    def transition(
        self, key: Key, start: str, finish: str, *args: Any, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Learn from results, and drop what Dask has forgotten."""
        if self._engine is None:
            return
        ts = self._engine.scheduler.tasks[key]
        if self.observer is not None:
            self.observer.moved(ts, finish, stimulus_id)
        failover = self._failover
        if failover is not None:
            failover.recoveries.moved(key, start, finish, stimulus_id)
            if start == "processing":
                failover.left(ts)
        if finish == "memory":
            if start == "processing":
                self._engine.finished(ts)
                if failover is not None:
                    failover.ran(ts, kwargs["startstops"])
                now = time()
                self.executions.finished(key, kwargs["worker"], now, kwargs["startstops"])
                if self.observer is not None and now >= self.observer.due:
                    self.observer.sample(now)
            self._settled(key)
        elif finish == "processing":
            self._engine.sent(ts)
            self.executions.sent(key, time())
            if failover is not None:
                failover.sent()
        elif start == "processing":
            self.executions.left(key)
        if finish == "forgotten":
            self._engine.forgotten(ts)
        elif finish == "erred":
            self._engine.failed(ts)
        if finish in ("forgotten", "erred", "released"):
            if not (finish == "released" and (ts.waiters or ts.who_wants)):
                self._settled(key)
            if failover is not None:
                failover.released(ts)

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Copy to a worker that came what there was no other for."""
        if self._failover is not None:
            self._failover.worker_came()

    def remove_worker(
        self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **kwargs: Any
    ) -> None:
        """Tell what the loss of a worker makes necessary."""
        if self._adapter is not None and self._adapter.installed:
            self._adapter.worker_left()
        if self._failover is not None:
            self._failover.worker_lost(worker, stimulus_id)
        if self.observer is not None:
            self.observer.worker_left(worker)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take note of where workers keep their results."""
        if self._failover is not None:
            self._failover.log_event(topic, msg)

    def kept(self) -> set[Key]:
        """Return the keys of the results that outlive their worker's process."""
        return self._failover.kept() if self._failover is not None else set()

    def retrying(self) -> set[Key]:
        """Return the keys of what has failed and waits to be tried again."""
        return self._adapter.retrying() if self._adapter is not None else set()

    def _settled(self, key: Key) -> None:
        if self._failover is not None:
            self._failover.settled(key)

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

    def _repr_html_(self) -> str:
        from dask_marsched.monitoring.notebook_views import plugin_view

        return plugin_view(self.report(), self.settings)

    # -- what it did -----------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return what the plugin did since it was started, as plain values for JSON.

        Returns
        -------
        dict
            ``active`` and, if it is not, the ``reason``; ``policies`` by kind; counts:
            ``graphs_planned``, ``operands_planned``, ``operands_placed``, ``replanned``,
            ``copies_dropped``, ``retried``, ``second_runs`` of stragglers and those won,
            results ``protected`` by a second copy and their bytes,
            ``fusion`` (its ``mode``, and how many ``operands`` it has joined ``into`` how many),
            ``withheld`` (how withheld operands came to their worker), ``left_to_dask`` by
            reason; ``exact_sizes``, the share of the planned operands whose size was known
            exactly before they ran; ``recoveries``, see `Recoveries.report`;
            ``worker_parts``, what it does in the workers;
            ``api``, the ``path`` of the JSON API or the ``reason`` why there is none;
            ``dashboard``, the ``pages`` there are or the ``reason`` why there are none;
            ``exceptions`` caught by hook, the ``last_exception``; ``registered``, by whom and
            when, and what that ``replaced``, see `Registration.report`;
            ``versions``.
        """
        counters = self._engine.counters if self._engine is not None else Counters()
        planned = counters.operands_planned
        reason = self.why_not_active()
        recoveries = self._failover.recoveries if self._failover is not None else None
        return {
            "active": reason is None,
            "reason": reason,
            "policies": self.policies.names(),
            "graphs_planned": counters.graphs_planned,
            "operands_planned": planned,
            "operands_placed": counters.operands_placed,
            "replanned": counters.replanned,
            "refined": counters.refined,
            "recalled": counters.recalled,
            "copies_dropped": counters.copies_dropped,
            "retried": counters.retried,
            **(self._failover.report() if self._failover is not None else {}),
            "withheld": dict(counters.withheld),
            "fusion": {
                "mode": self.settings.fusion,
                "operands": counters.fused,
                "into": counters.fused_into,
            },
            "left_to_dask": dict(counters.left_to_dask),
            "exact_sizes": counters.exact_sizes / planned if planned else 0.0,
            "recoveries": recoveries.report() if recoveries is not None else {},
            "api": self._api.report() if self._api is not None else {},
            "dashboard": self._dashboard_report(),
            "worker_parts": self._worker_parts() if self._workers is not None else [],
            "exceptions": dict(counters.exceptions),
            "last_exception": counters.last_exception,
            "registered": self._registered(),
            "versions": own_versions(),
        }

    def _registered(self) -> dict[str, Any] | None:
        if self.registration is None or self._engine is None:
            return None
        return self.registration.report(self._engine.scheduler.clients)


def _policy(kind: str, given: Any) -> Any:
    if isinstance(given, str):
        return registry.create(kind, given)
    protocol = _PROTOCOLS[kind]
    if isinstance(given, protocol):
        return given
    raise TypeError(
        f"{kind} must be the name of a registered policy "
        f"({', '.join(map(repr, registry.names(kind)))}) or an object with the methods of "
        f"{protocol.__module__}.{protocol.__qualname__}, not {given!r}"
    )
