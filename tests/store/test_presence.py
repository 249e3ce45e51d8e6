import pytest
from distributed.utils_test import poll_for

from dask_marsched.store.presence import claim, is_claimed
from tests.store.forks import Child
from tests.store.peers import peers
from tests.store.test_arena import needs_unshare

HERE = "tcp://192.0.2.1:1"  # an address of nobody


def test_a_claim_is_found_by_its_address_only():
    assert not is_claimed(HERE)
    claimed = claim([HERE, "tcp://192.0.2.1:2", HERE])
    assert is_claimed(HERE)
    assert is_claimed("tcp://192.0.2.1:2")
    assert not is_claimed("tcp://192.0.2.1:3")
    for _ in range(1000):
        assert is_claimed(HERE)  # asking leaves nothing behind
    claimed.close()
    assert not is_claimed(HERE)


def test_an_address_is_claimed_once():
    claimed = claim([HERE])
    with pytest.raises(OSError, match="Address already in use"):
        claim(["tcp://192.0.2.1:0", HERE])
    assert not is_claimed("tcp://192.0.2.1:0")
    claimed.close()


def test_a_claim_ends_with_its_process():
    with peers(()) as (peer,):
        peer.do("claimed = claim([here])", here=HERE)
        assert is_claimed(HERE)
        peer.kill()
        assert not is_claimed(HERE)


def test_a_fork_does_not_keep_the_claim_of_its_parent():
    claimed = claim([HERE])
    child = Child(lambda: is_claimed(HERE))
    assert is_claimed(HERE)
    claimed.close()
    poll_for(lambda: not is_claimed(HERE), 10)  # it may have yet to start
    with claim([HERE]):
        assert child.call() is True


@pytest.mark.extended
@needs_unshare
@pytest.mark.parametrize("namespace", ["--pid", "--net"])
def test_a_claim_is_not_seen_in_another_namespace(namespace):
    claimed = claim([HERE])
    with peers(("unshare", "--user", "--map-root-user", namespace, "--fork")) as (peer,):
        assert peer.do("is_claimed(here)", here=HERE) is False
    claimed.close()
