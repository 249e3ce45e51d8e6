"""Lets a nanny start whose scheduler dies while the nanny's first worker starts.

A stock nanny tells its scheduler that the worker has started, and gives up both where nobody
listens. The worker itself has meanwhile found the scheduler that came after.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from distributed import Nanny
from distributed.comm import CommClosedError
from distributed.diagnostics.plugin import NannyPlugin

from dask_marsched.host.contract import explain, misfits_of_attributes

logger = logging.getLogger("dask_marsched")

NAME = "marsched-registration"
_COMM = "Nanny->Scheduler (registration)"


class LastingRegistration(NannyPlugin):
    """Keeps a starting nanny alive if its scheduler dies before the nanny's last message to it.

    It arrives with the scheduler's answer to the nanny's registration, before there is a worker.
    """

    name = NAME

    def setup(self, nanny: Nanny) -> None:
        """Have a failed write on the connection of the registration do no harm."""
        if found := misfits_of_attributes("Nanny.rpc", nanny.rpc, ("occupied",)):
            logger.warning(explain(found, "the nanny closes when its scheduler dies meanwhile"))
            return
        for comms in nanny.rpc.occupied.values():
            for comm in comms:
                if comm.name == _COMM:
                    _forgive(comm)


def _forgive(comm: Any) -> None:
    stock = comm.write

    @functools.wraps(stock)
    async def write(*args: Any, **kwargs: Any) -> Any:
        try:
            return await stock(*args, **kwargs)
        except CommClosedError:
            logger.warning("The scheduler is gone; the worker that starts waits for another one")

    comm.write = write
