"""What functions that ask a scheduler do with a client that is closed."""

import distributed
import pytest
from distributed.client import ClosedClientError

import dask_marsched
from tests.processes import local_cluster


@pytest.fixture(scope="module")
def closed():
    with local_cluster(n_workers=1, processes=False) as cluster:
        # By its address, so that its event loop ends with it.
        client = distributed.Client(cluster.scheduler_address, set_as_default=False)
        future = client.submit(sum, [1, 2])
        client.close()
        yield client, future


@pytest.mark.parametrize(
    "call", [dask_marsched.cancel, dask_marsched.operands, dask_marsched.resume]
)
def test_a_closed_client_is_named_as_by_dask(closed, call):
    client, future = closed
    with pytest.raises(ClosedClientError, match=r"Client is closed\. Can't send"):
        client.submit(sum, [1, 3], pure=False)
    with pytest.raises(ClosedClientError, match=rf"Client is closed\. Can't call {call.__name__}"):
        call(client)
    if call is not dask_marsched.resume:
        with pytest.raises(ClosedClientError):
            call(client, graph=future)


def test_the_status_of_a_client_without_an_event_loop(closed):
    assert dask_marsched.status(closed[0]).reason == "the client is closed, not connected"
