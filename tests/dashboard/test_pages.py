"""The pages on real schedulers: served, listed, removed, and absent where they cannot be."""

import asyncio
import json
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import pytest
from bokeh.client import pull_session
from distributed.utils_test import async_poll_for, gen_cluster
from tornado.httpclient import AsyncHTTPClient

import dask_marsched
from dask_marsched.config import Settings
from dask_marsched.dashboard.service import DashboardService
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.harness import plugin_of
from tests.processes import dask_command

NAMES = ("plan", "operands", "memory", "transfers", "kernels", "faults")
PAGES = ("mars", *(f"{kind}mars-{n}" for n in NAMES for kind in ("", "individual-")))
WITH_DASHBOARD = {"dashboard": True, "dashboard_address": ":0"}


async def fetch(scheduler, path):
    """Return status and text of a page."""
    url = f"http://127.0.0.1:{scheduler.http_server.port}/{path}"
    answer = await AsyncHTTPClient().fetch(url, raise_error=False, request_timeout=20)
    return answer.code, answer.body.decode()


async def codes_of_all(scheduler, prefix=""):
    return {path: (await fetch(scheduler, prefix + path))[0] for path in PAGES}


@pytest.mark.extended
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2, scheduler_kwargs=WITH_DASHBOARD)
async def test_every_page_is_served_listed_and_removed(c, s, a, b):
    from distributed.dashboard.scheduler import template_variables

    stock = json.loads((await fetch(s, "individual-plots.json"))[1])
    variables = json.dumps(template_variables(s))
    applications = list(s.http_application.applications)
    await c.register_plugin(MarsSchedulerPlugin())
    assert sorted(plugin_of(s).report()["dashboard"]["pages"]) == sorted(PAGES)
    assert await c.compute(da.ones((20, 20), chunks=5).sum()) == 400
    assert set((await codes_of_all(s)).values()) == {200}
    # as JupyterLab asks for them, and what was there before is there still
    listed = json.loads((await fetch(s, "individual-plots.json"))[1])
    assert listed == {
        **stock,
        **{f"Individual Mars {n.title()}": f"/individual-mars-{n}" for n in NAMES},
    }
    _, page = await fetch(s, "status")
    assert '<a href="mars">' in page
    assert all(f'<a href="mars-{n}">Mars: {n}</a>' in page for n in NAMES)
    assert (await fetch(s, "tasks"))[0] == 200
    await c.unregister_scheduler_plugin("marsched")
    assert set((await codes_of_all(s)).values()) == {404}
    assert json.loads((await fetch(s, "individual-plots.json"))[1]) == stock
    assert json.dumps(template_variables(s)) == variables
    assert s.http_application.applications == applications
    assert (await fetch(s, "status"))[0] == 200


@gen_cluster(client=True, nthreads=[], scheduler_kwargs=WITH_DASHBOARD)
async def test_registering_again_leaves_one_of_each(c, s):
    from distributed.dashboard.scheduler import template_variables

    applications = len(s.http_application.applications)
    await c.register_plugin(MarsSchedulerPlugin())
    with pytest.warns(UserWarning, match="already contains a plugin"):
        await c.register_plugin(MarsSchedulerPlugin("dfs"))
    variables = template_variables(s)
    assert variables["pages"].count("mars") == 1
    assert sum(plot["url"] == "mars-plan" for plot in variables["plots"]) == 1
    assert len(s.http_application.applications) == applications + 1
    assert set((await codes_of_all(s)).values()) == {200}


@pytest.mark.extended
@gen_cluster(
    client=True, nthreads=[], scheduler_kwargs={**WITH_DASHBOARD, "http_prefix": "some/prefix"}
)
async def test_behind_a_prefix(c, s):
    await c.register_plugin(MarsSchedulerPlugin())
    assert set((await codes_of_all(s, "some/prefix/")).values()) == {200}
    _, listed = await fetch(s, "some/prefix/individual-plots.json")
    assert "/individual-mars-plan" in json.loads(listed).values()


@gen_cluster(client=True, nthreads=[])
async def test_without_a_dashboard_the_reason_is_told(c, s):
    await c.register_plugin(MarsSchedulerPlugin())
    told = plugin_of(s).report()["dashboard"]
    assert told == {"pages": [], "reason": "the scheduler has no dashboard"}
    status = await dask_marsched.status(c)
    assert status.details["dashboard"]["reason"] == "the scheduler has no dashboard"
    assert plugin_of(s).report()["exceptions"] == {}


# Bokeh's client leaves a thread behind.
@gen_cluster(
    client=True,
    nthreads=[],
    scheduler_kwargs=WITH_DASHBOARD,
    clean_kwargs={"threads": False},
)
async def test_an_open_page_says_that_it_ends_and_asks_for_nothing_more(c, s):
    await c.register_plugin(MarsSchedulerPlugin())
    url = f"http://127.0.0.1:{s.http_server.port}/mars-plan"
    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    session = await loop.run_in_executor(pool, pull_session, None, url)
    application = s.http_application.applications[0]
    (served,) = application.get_sessions("/mars-plan")
    (pane,) = served.document.components
    assert served.document.session_callbacks
    await c.unregister_scheduler_plugin("marsched")
    await async_poll_for(lambda: "Reload the page" in pane.note.text, 5)
    assert not served.document.session_callbacks
    await loop.run_in_executor(pool, session.close)
    pool.shutdown()


@gen_cluster(client=True, nthreads=[], scheduler_kwargs=WITH_DASHBOARD)
async def test_switched_off(c, s):
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(dashboard_pages=False)))
    assert (await fetch(s, "mars"))[0] == 404
    told = plugin_of(s).report()["dashboard"]
    assert told["reason"] == "switched off by marsched.dashboard.pages"


@gen_cluster(client=True, nthreads=[], scheduler_kwargs=WITH_DASHBOARD)
async def test_a_dashboard_of_another_kind_is_left_alone(c, s):
    from dask_marsched.host.web import dashboard

    applications = list(s.http_application.applications)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dashboard, "misfits", lambda: ["it is not as it was"])
        service = DashboardService(s, lambda *_: None)
        service.install()
    assert service.reason == "the dashboard is not as expected: it is not as it was"
    assert s.http_application.applications == applications
    service.uninstall()
    assert dashboard.misfits() == []


@pytest.mark.extended
def test_without_bokeh_the_plugin_works_and_tells_why(tmp_path):
    script = """
import sys
sys.modules["bokeh"] = None
import asyncio
from distributed import Client, Scheduler
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin

async def main():
    async with Scheduler(port=0, dashboard=True, dashboard_address=":0") as s:
        async with Client(s.address, asynchronous=True) as c:
            await c.register_plugin(MarsSchedulerPlugin())
            report = s.plugins["marsched"].report()
            print(report["active"], report["dashboard"], report["exceptions"])

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout.splitlines()[-1].startswith("True {'pages': [], 'reason': "), done.stderr
    assert done.stdout.rstrip().endswith("{}")


@pytest.mark.extended
def test_by_preload(start):
    own = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
    process = start(
        *dask_command("scheduler", *own, "--preload", "dask_marsched", "--dashboard-prefix", "lab")
    )
    port = process.wait_for(r"dashboard at:\s+http://[^:]+:(\d+)")[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/lab/mars-plan") as answer:
        assert answer.status == 200
