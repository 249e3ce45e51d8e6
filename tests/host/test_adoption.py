"""What a scheduler asks of the worker that takes over."""

from distributed.utils_test import gen_cluster, inc

from dask_marsched.host.adoption import Adoption


@gen_cluster(client=True)
async def test_what_is_released_meanwhile_is_not_taken_over(c, s, a, b):
    asked = []

    async def adopt(chunks, gone):
        asked.append(([key for key, _, _ in chunks], gone))
        return {"status": "OK", "adopted": []}

    b.handlers["marsched_adopt"] = adopt
    x, y = futures = c.map(inc, range(2), workers=[a.address])
    await c.gather(futures)
    adoption = Adoption(s, caught=None)
    batch = [s.tasks[future.key] for future in futures]
    for future in futures:
        adoption.announced(a.address, future.key, None, 1)
    adoption.forget(x.key)
    heir = s.workers[b.address]
    assert not await adoption._ask(heir, batch, a.address)
    assert asked == [([y.key], a.address)]
    adoption.forget(y.key)
    assert not await adoption._ask(heir, batch, a.address)
    assert len(asked) == 1


@gen_cluster(client=True)
async def test_what_is_announced_too_late_is_not_remembered(c, s, a, b):
    x = c.submit(inc, 1)
    await x
    adoption = Adoption(s, caught=None)
    adoption.announced(a.address, "forgotten", None, 1)
    adoption.announced("tcp://127.0.0.1:1", x.key, None, 1)
    assert not adoption._kept
