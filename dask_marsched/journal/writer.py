"""Writes the journal beside the event loop: takes records at once, writes groups in a thread."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from dask_marsched.journal.store import JournalError, JournalStore, Record

logger = logging.getLogger(__name__)

_GATHER = 0.02  # seconds; with the time of a write, a group is on disk within 50 ms
_MOST_BYTES = 512 << 20  # taken and not written: from here on the caller waits
_PATIENCE = 10.0  # seconds that it waits, before the journal is given up
_AGAIN = 3.0  # seconds between tries to remove what is left of it
_LAST_TRY = 5.0  # most seconds for the one at the end


class JournalWriter:
    """Takes records from the event loop and writes them in groups, in its own thread.

    It alone uses `store` from now on. Where writing fails, the journal is given up: `on_failure` is
    called once with the cause, in the writer's thread, or in the caller's where writing does not
    end. What is in the store is removed as soon as that is possible, since it no longer follows the
    scheduler, and what comes later is dropped. No method raises.
    """

    def __init__(self, store: JournalStore, on_failure: Callable[[JournalError], object]) -> None:
        self._store = store
        self._on_failure = on_failure
        self._lock = threading.RLock()  # reentrant: a finalizer may delete within a put
        self._changed = threading.Condition(self._lock)
        self._pending: list[Record] = []
        # when the oldest record was taken; 0: there is none
        self._pending_since = self._writing_since = 0.0
        self._unwritten_bytes = 0
        self._flushes: list[Future[bool]] = []
        self._closing = self._failed = False
        self.bytes_written = 0  #: Of keys and values that are durable.
        self._thread = threading.Thread(target=self._run, name="marsched-journal", daemon=True)
        self._thread.start()

    # --- the event loop's side ------------------------------------------------------------

    def delete(self, table: str, key: str) -> None:
        """Remove a key, if it is there."""
        self.put(table, key, None)

    def put(self, table: str, key: str, value: bytes | None) -> None:
        """Set the value of a key; with None, remove the key, if it is there."""
        with self._lock:
            if self._failed or self._closing:
                return
            self._pending.append(Record(table, key, value))
            self._unwritten_bytes += len(value or b"")
            if len(self._pending) == 1:
                self._pending_since = time.monotonic()
                self._changed.notify_all()
            too_slow = self._unwritten_bytes > _MOST_BYTES and not self._changed.wait_for(
                lambda: self._failed or self._unwritten_bytes <= _MOST_BYTES, _PATIENCE
            )
        if too_slow:
            self._fail(JournalError(f"{self._unwritten_bytes} bytes wait to be written"))

    def flush(self) -> Future[bool]:
        """Return a future of whether all that was taken so far is durable; False after a failure.

        ``await asyncio.wrap_future(writer.flush())`` in an event loop, ``writer.flush().result()``
        elsewhere.
        """
        future: Future[bool] = Future()
        with self._lock:
            if self._failed or self._closing:
                future.set_result(self._failed is False and not self._thread.is_alive())
            else:
                self._flushes.append(future)
                self._changed.notify_all()
        return future

    @property
    def lag_seconds(self) -> float:
        """Age of the oldest record that is not durable."""
        since = self._writing_since or self._pending_since
        return time.monotonic() - since if since else 0.0

    def close(self, timeout: float = 30.0) -> bool:
        """Write all, close the store, and return whether all that was taken is durable.

        After a failure it only tries once more, for a short time, to remove what is left.
        """
        with self._lock:
            self._closing = True
            self._changed.notify_all()
            timeout = min(timeout, _LAST_TRY) if self._failed else timeout
        self._thread.join(timeout)
        return not self._thread.is_alive() and not self._failed

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            untidy = False
            while self._wait_for_group(0.0 if untidy else None):
                self._write_group()
                untidy = self._store.tidy()
            if not self._failed:
                self._store.close()
        except Exception as error:
            self._fail(error if isinstance(error, JournalError) else JournalError(repr(error)))
        if self._failed:
            self._abandon()

    def _abandon(self) -> None:
        """Remove what is left, however long it takes: a next scheduler would go on with it."""
        is_last = False
        while not self._store.abandon():
            if is_last:
                logger.error("The journal could not be removed: do so before the next start")
                with contextlib.suppress(Exception):
                    self._store.close()
                return
            with self._lock:
                is_last = self._changed.wait_for(lambda: self._closing, _AGAIN)

    def _wait_for_group(self, timeout: float | None) -> bool:
        """Wait until there is something to do and others have joined it; False at the end."""
        with self._lock:
            self._changed.wait_for(lambda: self._pending or self._hurried(), timeout)
            if self._pending:
                gather = self._pending_since + _GATHER - time.monotonic()
                self._changed.wait_for(self._hurried, max(gather, 0.0))
            return not self._failed and bool(self._pending or self._flushes or not self._closing)

    def _hurried(self) -> bool:
        return bool(self._flushes) or self._closing or self._failed

    def _write_group(self) -> None:
        with self._lock:
            group, self._pending = self._pending, []
            flushes, self._flushes = self._flushes, []
            self._writing_since, self._pending_since = self._pending_since, 0.0
            taken_bytes = self._unwritten_bytes
        try:
            if group:
                self.bytes_written += self._store.write(group)
        except BaseException:
            self._flushes += flushes
            raise
        with self._lock:
            self._writing_since = 0.0
            self._unwritten_bytes -= taken_bytes
            self._changed.notify_all()
        for future in flushes:
            future.set_result(True)

    def _fail(self, cause: JournalError) -> None:
        with self._lock:
            if self._failed:
                return
            self._failed = True
            self._pending = []
            self._pending_since = self._writing_since = 0.0
            self._unwritten_bytes = 0
            flushes, self._flushes = self._flushes, []
            self._changed.notify_all()
        for future in flushes:
            future.set_result(False)
        logger.error("The journal is given up, the scheduler cannot be restored: %s", cause)
        try:
            self._on_failure(cause)
        except Exception:
            logger.exception("The callback for a failed journal failed")
