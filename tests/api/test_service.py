"""The JSON API of a real scheduler."""

import asyncio
import json
from urllib.parse import quote

import dask.array as da
import pytest
from distributed import Client, Event, Scheduler, wait
from distributed.utils_test import async_poll_for, gen_cluster, inc

import dask_marsched
from dask_marsched.api.endpoints import ENDPOINTS
from dask_marsched.config import Settings
from dask_marsched.host.web.http import HttpRoutes, serves
from dask_marsched.scheduler_plugin import MarsSchedulerPlugin
from tests.api.requests import JSON, WRITABLE, get, refused, request, validate
from tests.harness import check, planned_cluster, plugin_of


def held(x, name):
    Event(name).wait()
    return x


def fail(x):
    raise ZeroDivisionError(x)


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_a_computation_is_told(c, s, *workers):
    x = da.ones((40, 40), chunks=10).map_blocks(held, "go", dtype=float)
    future = c.compute(x.sum())
    await async_poll_for(lambda: any(ws.executing for ws in s.workers.values()), 5)
    (told,) = (await get(s, "/graphs"))["items"]
    assert await get(s, "/graphs/0") == told
    assert (told["number"], told["client"], told["wanted"]) == (0, c.id, 1)
    running = await get(s, "/operands?state=running&graph=0")
    assert {row["worker"] for row in running["items"]} <= set(s.workers)
    assert {row["state"] for row in running["items"]} == {"running"}
    await Event("go").set()
    assert await future == 1600
    (row,) = (await get(s, f"/operands?state=finished&graph={told['number']}"))["items"]
    assert row["key"] == str(future.key)
    told = await get(s, f"/operands?key={row['key']}")
    assert [step["state"] for step in told["history"]] == [
        "unscheduled", "ready", "running", "finished",
    ]  # fmt: skip
    assert (await get(s, "/status"))["active"]


@planned_cluster([("127.0.0.1", 1)])
async def test_keys_are_text(c, s, a):
    keys = ["a b&c=é", ("x", 1), ("y",), ("z", 0, -1), 7, ("deep", ("er", 1.5)), "('x', 2)"]
    futures = [c.submit(inc, i, key=key) for i, key in enumerate(keys)]
    await wait(futures)
    for key in keys:
        (row,) = (await get(s, f"/operands?key={quote(str(key))}"))["items"]
        assert (row["key"], row["state"]) == (str(key), "finished")
    told = await get(s, "/operands?key=__import__('os').getpid()")
    assert told["items"] == []


@planned_cluster([("127.0.0.1", 1)])
async def test_pages_hold_everything_once(c, s, a):
    futures = c.map(inc, range(25))
    await wait(futures)
    keys, offset = [], 0
    while offset is not None:
        page = await get(s, f"/operands?limit=10&offset={offset}")
        keys += [row["key"] for row in page["items"]]
        offset = page["next"]
    assert sorted(keys) == sorted(future.key for future in futures)
    for n in range(3):
        await c.submit(inc, n, pure=False)
    page = await get(s, "/graphs?limit=2")
    assert [graph["number"] for graph in page["items"]] == [3, 2]
    page = await get(s, f"/graphs?limit=2&offset={page['next']}")
    assert [graph["number"] for graph in page["items"]] == [1, 0]
    assert page["next"] is None


@pytest.mark.extended
@planned_cluster([("127.0.0.1", 1)])
async def test_operands_of_a_graph(c, s, a):
    few = c.compute(da.ones(40, chunks=10).sum())
    many = c.map(inc, range(2000))
    await wait([few, *many])
    page = await get(s, "/operands?graph=0")
    assert str(few.key) in {row["key"] for row in page["items"]}
    assert page["total"] == len(page["items"]) < 20
    page = await get(s, "/operands?graph=1&state=finished&limit=1000")
    assert (page["total"], len(page["items"]), page["next"]) == (2000, 1000, 1000)
    page = await get(s, "/operands?graph=1&state=finished&limit=1000&offset=1000")
    assert (len(page["items"]), page["next"]) == (1000, None)
    assert (await get(s, f"/operands?graph=0&key={many[0].key}"))["items"] == []
    assert (await refused(s, "/operands?graph=2"))[0] == 404


@planned_cluster([("127.0.0.1", 1)])
async def test_failures_name_their_cause(c, s, a):
    broken = c.submit(fail, 1, key=("broken", 0))
    reader = c.submit(inc, broken, key="reader")
    await wait(reader)
    (row,) = (await get(s, "/operands?key=reader"))["items"]
    assert (row["state"], row["cause"]) == ("fatal", "('broken', 0)")


@planned_cluster([("127.0.0.1", 1)] * 2)
async def test_plans_and_workers(c, s, *workers):
    """All that is described, before there is anything and afterwards."""
    for path in ("/counts", "/quota", "/store", "/transfers", "/kernels", "/faults", "/graphs"):
        await get(s, path)
    x = da.random.random((80, 80), chunks=10)
    assert await c.compute((x + x.T).sum()) > 0
    with pytest.raises(ZeroDivisionError):
        await c.submit(fail, 1)
    (single, told) = (await get(s, "/graphs"))["items"]
    assert single["plan"] is None
    assert told["plan"]["done"]
    assert sum(told["plan"]["counts"].values()) == told["plan"]["operands"] == told["operands"]
    plan = await get(s, "/graphs/0/plan?most=20")
    assert plan["aggregated"]
    assert 0 < len(plan["cells"]["row"]) <= 20
    assert sum(plan["cells"]["operands"]) == told["operands"]
    assert (await refused(s, "/graphs/1/plan"))[0] == 404
    assert (await refused(s, "/graphs/0/plan?most=0"))[0] == 400
    counts = await get(s, "/counts")
    assert counts["counts"]["fatal"] == 1
    assert (await get(s, "/counts?graph=0"))["counts"]["fatal"] == 0
    assert (await refused(s, "/counts?graph=1"))[0] == 404
    assert (await refused(s, "/transfers?graph=9"))[0] == 404
    for path in ("/quota", "/store"):
        rows = (await get(s, path))["workers"]
        assert {row["worker"] for row in rows} == set(s.workers)
        few = await get(s, f"{path}?limit=1")
        assert (len(few["workers"]), few["more_workers"]) == (1, 1)
    moved = await get(s, "/transfers")
    assert moved["moved"] == sum(map(sum, moved["matrix"]["bytes"])) > 0
    assert (await get(s, "/faults"))["fatal"] == 1


def unobserved():
    return MarsSchedulerPlugin(settings=Settings(observer_enabled=False))


@planned_cluster([("127.0.0.1", 1)], plugin=unobserved)
async def test_without_the_observer(c, s, a):
    future = c.compute(da.ones(40, chunks=10).sum())
    assert await future == 40
    (told,) = (await get(s, "/graphs"))["items"]
    assert told["plan"] is None
    assert (await get(s, "/operands?graph=0"))["items"]
    for path in ("/counts", "/quota", "/store", "/transfers", "/kernels", "/faults"):
        status, message = await refused(s, path)
        assert (status, "marsched.observer.enabled" in message) == (404, True)


@planned_cluster([("127.0.0.1", 1)])
async def test_what_is_refused(c, s, a):
    assert await refused(s, "/nowhere") == (404, "there is no such path; see openapi.json")
    assert await refused(s, "/graphs/3") == (404, "there is no graph 3, or not any more")
    assert (await refused(s, "/graphs/../../x"))[0] == 404
    assert (await refused(s, "/graphs/a"))[0] == 400
    assert (await refused(s, "/graphs/%ff"))[0] == 400
    assert (await refused(s, "/graphs//cancel", "POST", body="{}"))[0] in (400, 404)
    status, message = await refused(s, "/operands?state=busy")
    assert (status, "state must be one of unscheduled, ready" in message) == (400, True)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE"):
        answer = await request(s, "/graphs", method, body="{}")
        assert (answer.code, answer.headers["Allow"]) == (405, "GET, HEAD")
    head = await request(s, "/graphs", "HEAD")
    assert (head.code, head.body) == (200, b"")
    assert head.headers["Content-Type"] == "application/json"
    assert "Access-Control-Allow-Origin" not in head.headers


# --- writing ------------------------------------------------------------------------------


async def everything(s: Scheduler) -> tuple[object, ...]:
    tasks = {key: (ts.state, frozenset(cs.client_key for cs in ts.who_wants or ()))
             for key, ts in s.tasks.items()}  # fmt: skip
    return tasks, set(s.workers), set(s.plugins), s.status, len(plugin_of(s).executions.graphs)


@planned_cluster([("127.0.0.1", 1)])
async def test_nothing_is_changed_without_authorisation(c, s, a):
    """Every path of the table, and one that is not in it, by every method there is."""
    future = c.submit(held, 1, "go", key="x")
    await async_poll_for(lambda: "x" in s.tasks and s.tasks["x"].state == "processing", 5)
    before = await everything(s)
    paths = [e.path.replace("{graph}", "0") for e in ENDPOINTS] + ["/graphs/0/nowhere"]
    assert "/graphs/0/cancel" in paths
    same = f"http://127.0.0.1:{s.http_server.port}"
    tries = [
        {},
        {"body": "{}"},
        {"body": '{"force": true}', "headers": JSON},
        {"body": '{"force": true}', "headers": {**JSON, "Origin": same}},
        {"body": "{}", "headers": {**JSON, "Authorization": "Bearer x", "Cookie": "user=x"}},
    ]
    for path in paths:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            for given in tries:
                answer = await request(s, path, method, **given)
                assert answer.code in (200, 403, 404, 405), (path, method, given)
                if method == "POST":
                    assert answer.code != 200, path
    # Methods that others read out of a header are not.
    answer = await request(s, "/graphs/0/cancel", headers={"X-HTTP-Method-Override": "POST"})
    assert answer.code == 405
    assert await everything(s) == before
    assert not (await get(s, "/"))["writable"]
    await Event("go").set()
    assert await future == 1


@planned_cluster([("127.0.0.1", 1)], config=WRITABLE)
async def test_where_distributeds_own_api_is_served_graphs_are_cancelled(c, s, a):
    assert (await get(s, "/"))["writable"]
    future = c.submit(held, 1, "go", key="x")
    await async_poll_for(lambda: "x" in s.tasks and s.tasks["x"].state == "processing", 5)
    path = "/graphs/0/cancel"
    assert (await refused(s, path, "POST", body="{}"))[0] == 415
    evil = {**JSON, "Origin": "http://evil.example"}
    assert (await refused(s, path, "POST", body="{}", headers=evil))[0] == 403
    for body in ("", "[", "[]", '{"force": 1}', '{"other": 1}', "[" * 4000, b"\xff"):
        assert (await refused(s, path, "POST", body=body, headers=JSON))[0] == 400, body
    body = json.dumps({"force": " " * 5000})
    assert (await refused(s, path, "POST", body=body, headers=JSON))[0] == 413
    assert (await refused(s, "/graphs/1/cancel", "POST", body="{}", headers=JSON))[0] == 404
    status, message = await refused(s, "/restart", "POST", body="{}", headers=JSON)
    assert (status, "no journal" in message) == (409, True)
    assert "x" in s.tasks
    answer = await request(s, path, "POST", body="{}", headers=JSON)
    assert json.loads(answer.body) == {"graph": 0, "cancelled": 1}
    await async_poll_for(future.cancelled, 5)
    await async_poll_for(lambda: "x" not in s.tasks, 5)
    await Event("go").set()


@planned_cluster([("127.0.0.1", 1)], config=WRITABLE)
async def test_what_others_want_is_cancelled_by_force_only(c, s, a):
    async with Client(s.address, asynchronous=True) as other:
        mine = c.submit(held, 1, "go", key="x")
        await async_poll_for(lambda: "x" in s.tasks, 5)
        theirs = other.submit(held, 1, "go", key="x")
        await async_poll_for(lambda: len(s.tasks["x"].who_wants) == 2, 5)
        answer = await request(s, "/graphs/0/cancel", "POST", body="{}", headers=JSON)
        assert json.loads(answer.body)["cancelled"] == 0
        body = '{"force": true}'
        answer = await request(s, "/graphs/1/cancel", "POST", body=body, headers=JSON)
        assert json.loads(answer.body)["cancelled"] == 1
        await async_poll_for(theirs.cancelled, 5)
        await Event("go").set()
        del mine


@gen_cluster(nthreads=[], config=WRITABLE)
async def test_distributeds_own_api_asks_for_nothing_else(s):
    """If this fails, distributed asks for more by now, and so must we."""
    answer = await request(s, "", root="/api/v1", method="GET")
    assert answer.body == b"API V1"
    answer = await request(s, "/retire_workers", "POST", body='{"workers": []}', root="/api/v1")
    assert answer.code == 200


# --- coming and going ---------------------------------------------------------------------


@gen_cluster(client=True, nthreads=[])
async def test_it_comes_and_goes_with_the_plugin(c, s):
    rules = list(s.http_application.default_router.rules)
    for _ in range(2):
        await c.register_plugin(MarsSchedulerPlugin())
        text = str(await dask_marsched.status(c))
        assert "JSON API          /marsched/api/v1/" in text
        assert (await get(s, "/status"))["api"] == {"path": "/marsched/api/v1/", "reason": None}
        assert len(s.http_application.default_router.rules) == len(rules) + 1
        with pytest.warns(UserWarning, match="already contains"):
            await c.register_plugin(MarsSchedulerPlugin("dfs"))  # in the place of the first
        await get(s, "/status")
        assert len(s.http_application.default_router.rules) == len(rules) + 1
        await c.unregister_scheduler_plugin("marsched")
        assert (await request(s, "/status")).code == 404
        assert s.http_application.default_router.rules == rules


@gen_cluster(client=True, nthreads=[], scheduler_kwargs={"http_prefix": "/a/b"})
async def test_the_prefix_of_the_dashboard(c, s):
    await c.register_plugin(MarsSchedulerPlugin())
    answer = await request(s, "/openapi.json", root="/a/b/marsched/api/v1")
    assert json.loads(answer.body)["servers"] == [{"url": "/a/b/marsched/api/v1"}]
    assert (await request(s, "/openapi.json")).code == 404
    assert check(s)["api"]["path"] == "/a/b/marsched/api/v1/"


@gen_cluster(client=True, nthreads=[])
async def test_switched_off(c, s):
    await c.register_plugin(MarsSchedulerPlugin(settings=Settings(api_enabled=False)))
    assert (await request(s, "/")).code == 404


@gen_cluster(nthreads=[])
async def test_others_routes_stay_and_ours_are_not_there_twice(s):
    from dask_marsched.api.service import ApiService

    first, second = (ApiService(s, MarsSchedulerPlugin(), lambda hook, error: None) for _ in "ab")
    first.install()
    second.install()
    assert (first.reason, second.reason) == (None, "another plugin's routes are there")
    second.uninstall()
    assert (await request(s, "/")).code == 200
    assert (await request(s, "/health", root="")).body == b"ok"
    sitemap = json.loads((await request(s, "/sitemap.json", root="")).body)
    assert "/marsched/api/v1/operands" in sitemap["paths"]
    assert HttpRoutes(object(), []).install() == "the scheduler has no http server"
    assert not serves(object(), "m")


@gen_cluster(client=True, nthreads=[])
async def test_a_failure_is_counted_and_told_as_json(c, s, caplog):
    await c.register_plugin(MarsSchedulerPlugin())
    plugin = plugin_of(s)
    plugin.executions.graphs = None
    for _ in range(2):
        status, message = await refused(s, "/graphs")
        assert (status, "scheduler's log" in message) == (500, True)
    report = plugin.report()
    assert report["exceptions"] == {"api": 2}
    assert sum("api failed" in record.message for record in caplog.records) == 1
    plugin.executions.clear = lambda: None


@planned_cluster([("127.0.0.1", 1)])
async def test_many_requests_at_once(c, s, a):
    futures = c.map(inc, range(100))
    answers = await asyncio.gather(*(request(s, f"/operands?limit={n + 1}") for n in range(50)))
    assert {answer.code for answer in answers} == {200}
    for answer in answers:
        validate("/operands", json.loads(answer.body))
    assert sum(await c.gather(futures)) == 5050
