"""Finds results that a cluster holds already and that a collection builds on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import distributed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Future, futures_of
from distributed.comm import get_address_host

from dask_marsched.host.twin.literals import parts_of, placeholder_task

#: Numbers of the workers that hold a result; empty if unknown.
Places = tuple[int, ...]


def find_held_results(
    collections: Iterable[Any],
) -> tuple[dict[Any, int], dict[Any, Places]]:
    """Return bytes and places of the futures that collections build on, as schedulers know them.

    Workers are numbered by host and address. Nothing runs on a worker.
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
        workers = client.scheduler_info(n_workers=-1)["workers"]
        addresses = sorted(workers, key=lambda address: (get_address_host(address), address))
        number = {address: i for i, address in enumerate(addresses)}
        # The scheduler may not know a future yet, or may have lost it.
        for key, holders in client.who_has(own).items():
            places[key] = tuple(sorted(number[w] for w in holders if w in number))
        there = [future.key for future in own if places[future.key]]
        sizes = client.nbytes(there, summary=False) if there else {}
        nbytes.update((key, int(size)) for key, size in sizes.items())
    return nbytes, places


def _futures(collections: Iterable[Any]) -> Iterator[Future[Any]]:
    for item in collections:
        graph = getattr(item, "dask", None)
        if isinstance(graph, HighLevelGraph):
            # Symbolic layers hold no futures, and materializing a large graph takes long.
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
    """Return tasks in place of the held results that a graph needs, in a repeatable order."""
    missing = dict.fromkeys(key for key in keys if key not in dsk)
    for node in dsk.values():
        if not node.dependencies <= dsk.keys():
            missing.update(dict.fromkeys(key for key in node.dependencies if key not in dsk))
    return {key: placeholder_task(key) for key in sorted(missing, key=repr) if key in held}


def held_results_limits(
    keys: Collection[Any], places: Mapping[Any, Places], loses_workers: bool
) -> Iterator[str]:
    """Yield the differences between held results and their simulation."""
    unknown = sum(not places.get(key) for key in keys)
    if unknown:
        yield (
            f"the places of {unknown} results that the collection builds on, and their sizes if "
            "the graph does not give them: no client is connected to their scheduler, so that they "
            "are spread evenly over the workers"
        )
    if keys and loses_workers:
        yield "recomputation of lost results that the cluster held before the run"


def distribute(
    keys: Iterable[Any], places: Mapping[Any, Places], workers: int
) -> dict[Any, Places]:
    """Return the places of held results on this many workers: the real ones, else dealt evenly."""
    keys = list(keys)
    if all(places.get(key) and max(places[key]) < workers for key in keys):
        return {key: places[key] for key in keys}
    return {key: (i * workers // len(keys),) for i, key in enumerate(keys)}
