"""The ledger: what is granted is accounted for, and nobody waits for ever."""

from hypothesis import given
from hypothesis import strategies as st

from dask_marsched.policies.quota import MemoryNeed, MemoryRequest, Quota

LIMIT = 100

needs = st.builds(
    MemoryNeed,
    inputs=st.integers(0, 60),
    output=st.integers(0, 60),
    working=st.integers(0, 60),
)


def quota(overtakes=2, **taken):
    made = Quota(LIMIT)
    made.overtakes = overtakes
    for name, nbytes in taken.items():
        setattr(made, name, nbytes)
    return made


def request(who, nbytes):
    return MemoryRequest(who, MemoryNeed(output=nbytes))


def test_fitting_requests_are_granted_in_order():
    ledger = quota(held=30, unmanaged=10, transfers=10)
    queue = [request("a", 30), request("b", 20)]
    assert ledger.choose(queue).who == "a"
    assert ledger.choose(queue[1:]).who == "b"
    assert ledger.free == 0
    assert ledger.choose([request("c", 1)]) is None
    ledger.release("a")
    ledger.release("a")
    assert ledger.choose([request("c", 1)]).who == "c"
    assert ledger.promised == 21


def test_negligible_requests_are_always_granted():
    ledger = Quota(10_000)
    ledger.held = 20_000
    assert ledger.choose([request("small", 10)]).who == "small"
    assert ledger.choose([request("large", 11)]) is None


def test_working_space_is_given_back_before_the_output():
    ledger = quota()
    ledger.grant(MemoryRequest("a", MemoryNeed(inputs=10, output=20, working=30)))
    ledger.change("a", MemoryNeed(output=20))
    assert ledger.used == 20
    ledger.change("unknown", MemoryNeed(output=20))
    assert ledger.used == 20


def test_a_smaller_one_overtakes_but_not_for_ever():
    ledger = quota(overtakes=2, held=50)
    large = request("large", 60)
    for n in range(2):
        granted = ledger.choose([large, request(n, 10)])
        assert granted.who == n
        ledger.release(n)
    assert ledger.choose([large, request(2, 10)]) is None
    ledger.held = 40
    assert ledger.choose([large, request(2, 10)]).who == "large"


def test_who_does_not_wait_any_more_is_forgotten():
    ledger = quota(overtakes=1, held=50)
    large = request("large", 60)
    assert ledger.choose([large, request("a", 1)]).who == "a"
    assert ledger.choose([large, request("b", 1)]) is None
    ledger.keep_only([])
    assert ledger.choose([large, request("b", 1)]).who == "b"


def test_the_process_corrects_the_ledger():
    ledger = quota()
    ledger.observe(resident=40, held=30, transfers=0)
    assert ledger.unmanaged == 10
    ledger.grant(request("a", 20))
    # It may or may not have touched what was promised to it.
    for resident in (40, 50, 60):
        ledger.observe(resident, held=30, transfers=0)
        assert ledger.used == 60
    ledger.observe(resident=75, held=30, transfers=0)
    assert ledger.used == 75
    ledger.release("a")
    ledger.observe(resident=40, held=30, transfers=0)
    assert ledger.used == 40


@given(st.integers(0, 200), st.integers(0, 100), st.integers(0, 50), st.lists(needs, max_size=3))
def test_used_is_never_less_than_the_process_takes(resident, held, transfers, granted):
    ledger = quota()
    for who, need in enumerate(granted):
        ledger.grant(MemoryRequest(who, need))
    ledger.observe(resident, held, transfers)
    assert ledger.used >= resident
    assert ledger.used <= max(resident, resident + transfers + ledger.promised)


@given(st.data(), st.integers(0, 4))
def test_a_worker_comes_to_the_end_of_any_queue(data, overtakes):
    """Operands of any size come and go: each grant fits, none waits for ever."""
    ledger = quota(overtakes)
    waiting: dict[int, MemoryRequest] = {}
    running: list[int] = []
    overtaken: dict[int, int] = {}
    operands = st.lists(st.tuples(st.integers(), needs), max_size=12, unique_by=lambda t: t[0])
    arriving = data.draw(operands)
    steps = 0
    while arriving or waiting or running:
        steps += 1
        # Twice a grant and an end for each operand, and a step between: more is a livelock.
        assert steps <= 100
        idle = not waiting and not running
        if arriving and (idle or data.draw(st.booleans())):
            priority, need = arriving.pop()
            waiting[priority] = MemoryRequest(priority, need)
        free = ledger.free
        granted = ledger.choose(waiting[p] for p in sorted(waiting))
        if granted is not None:
            assert granted.need.total <= free
        elif waiting and not running:
            granted = waiting[min(waiting)]
            ledger.grant(granted)
        if granted is not None:
            del waiting[granted.who]
            running.append(granted.who)
            for who in waiting:
                if who < granted.who:
                    overtaken[who] = overtaken.get(who, 0) + 1
        elif running:
            ledger.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
        assert ledger.promised == sum(need.total for need in ledger.grants.values())
        assert set(ledger.grants) == set(running)
    assert all(times <= overtakes for times in overtaken.values())
    assert ledger.used == 0
