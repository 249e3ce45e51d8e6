import pytest

from dask_marsched.store.presence import AddressClaim, is_claimed
from tests.store.peers import peers
from tests.store.test_arena import needs_unshare

HERE = "tcp://192.0.2.1:1"  # an address of nobody


def test_a_claim_is_found_by_its_address_only():
    assert not is_claimed(HERE)
    claim = AddressClaim([HERE, "tcp://192.0.2.1:2", HERE])
    assert is_claimed(HERE)
    assert is_claimed("tcp://192.0.2.1:2")
    assert not is_claimed("tcp://192.0.2.1:3")
    for _ in range(1000):
        assert is_claimed(HERE)  # asking leaves nothing behind
    claim.close()
    assert not is_claimed(HERE)


def test_an_address_is_claimed_once():
    claim = AddressClaim([HERE])
    with pytest.raises(OSError, match="Address already in use"):
        AddressClaim(["tcp://192.0.2.1:0", HERE])
    assert not is_claimed("tcp://192.0.2.1:0")
    claim.close()


def test_a_claim_ends_with_its_process():
    with peers(()) as (peer,):
        peer.do("claim = AddressClaim([here])", here=HERE)
        assert is_claimed(HERE)
        peer.kill()
        assert not is_claimed(HERE)


@pytest.mark.extended
@needs_unshare
@pytest.mark.parametrize("namespace", ["--pid", "--net"])
def test_a_claim_is_not_seen_in_another_namespace(namespace):
    claim = AddressClaim([HERE])
    with peers(("unshare", "--user", "--map-root-user", namespace, "--fork")) as (peer,):
        assert peer.do("is_claimed(here)", here=HERE) is False
    claim.close()
