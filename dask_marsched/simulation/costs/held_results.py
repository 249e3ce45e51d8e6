"""Results that a cluster holds already, and that a collection builds on."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import distributed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Future, futures_of
from distributed.comm import get_address_host

from dask_marsched.host.graph.literals import held_elsewhere, parts_of

#: The numbers of the workers that hold a result; none where that is not known.
Places = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class HeldResults:
    """What is known of results in memory.

    Attributes
    ----------
    nbytes : mapping of key to int
        Bytes of those whose size a scheduler told.
    places : mapping of key to tuple of int
        For each of them the numbers of the workers that hold it. Workers are numbered by host and
        address; empty where no scheduler told.
    """

    nbytes: Mapping[Any, int]
    places: Mapping[Any, Places]


def find_held_results(collections: Iterable[Any]) -> HeldResults:
    """Ask the schedulers what they know of the futures that collections are built on.

    Only what the scheduler has noted is asked for; nothing runs on a worker.
    """
    futures = {future.key: future for future in _futures(collections)}
    places: dict[Any, Places] = dict.fromkeys(futures, ())
    nbytes: dict[Any, int] = {}
    clients: dict[int, distributed.Client] = {}
    for future in futures.values():
        client = future.client
        if client is not None and client.status == "running" and not client.asynchronous:
            clients[id(client)] = client
    for client in clients.values():
        own = [future for future in futures.values() if future.client is client]
        number = {address: i for i, address in enumerate(_addresses(client))}
        # A scheduler may have heard of a future later than of this question, or have lost it.
        for key, holders in client.who_has(own).items():
            places[key] = tuple(sorted(number[w] for w in holders if w in number))
        there = [future.key for future in own if places[future.key]]
        sizes = client.nbytes(there, summary=False) if there else {}
        nbytes.update((key, int(size)) for key, size in sizes.items())
    return HeldResults(nbytes, places)


def _addresses(client: distributed.Client) -> list[str]:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    return sorted(workers, key=lambda address: (get_address_host(address), address))


def _futures(collections: Iterable[Any]) -> Iterator[Future[Any]]:
    for item in collections:
        graph = getattr(item, "dask", None)
        if isinstance(graph, HighLevelGraph):
            # Layers that are not written out yet hold no futures: to write out a large graph
            # only to look for some would take as long as to simulate part of it.
            parts = [x.mapping for x in graph.layers.values() if isinstance(x, MaterializedLayer)]
            for part in parts:
                yield from (x for x in parts_of(part.values()) if isinstance(x, Future))
        elif _there_is_a_client():
            yield from futures_of([item])


def _there_is_a_client() -> bool:
    try:
        distributed.default_client()
    except ValueError:
        return False
    return True


def placeholders(
    dsk: Mapping[Any, Any], keys: Iterable[Any], held: Collection[Any]
) -> dict[Any, Any]:
    """Return tasks that stand for the held results that a graph needs, in a repeatable order."""
    missing = dict.fromkeys(key for key in keys if key not in dsk)
    for node in dsk.values():
        if not node.dependencies <= dsk.keys():
            missing.update(dict.fromkeys(key for key in node.dependencies if key not in dsk))
    return {key: held_elsewhere(key) for key in sorted(missing, key=repr) if key in held}


def held_results_limits(
    keys: Collection[Any], places: Mapping[Any, Places], loses_workers: bool
) -> Iterator[str]:
    """Name what of results on a cluster is not simulated as it is."""
    unknown = sum(not places.get(key) for key in keys)
    if unknown:
        yield (
            f"where {unknown} results are that the collection builds on, and their sizes where the "
            "graph does not tell them: no client is connected to their scheduler; every worker is "
            "taken to hold as many"
        )
    if keys and loses_workers:
        yield "how results are made again that a cluster held before, if they are lost"


def distribute(
    keys: Iterable[Any], places: Mapping[Any, Places], workers: int
) -> dict[Any, Places]:
    """Return where each result is on a simulated cluster.

    Parameters
    ----------
    keys
        The results.
    places
        Where they are on the real one.
    workers
        Workers of the simulated one. Where these are fewer, or it is not known where the results
        are, each worker gets as many as the others, of those that follow each other.
    """
    keys = list(keys)
    if all(places.get(key) and max(places[key]) < workers for key in keys):
        return {key: places[key] for key in keys}
    return {key: (i * workers // len(keys),) for i, key in enumerate(keys)}
