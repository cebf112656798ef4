"""Skips a store for a while after it failed or was slow."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from baton.kvtransfer.store.store import Key, KVStore, StoreUnavailable, StoreUse

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
T = TypeVar("T")


class GuardedStore:
    """A store that is skipped after a failed call, or one that took longer than its limit.

    While it is skipped, blocks are missing, and what is written is not stored. After 1 s one call is tried. If that
    fails, the pause doubles, up to 60 s. Reads and writes are skipped separately: blocks on a full disk can still be
    read. The log has one line for the first failure and one for the recovery.
    """

    def __init__(self, store: KVStore, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit_s`: longest call, measured at its end; `clock`: in s."""
        self._store = store
        self._reads = _Breaker(f"KV store {store.name}: reads", limit_s, clock)
        self._writes = _Breaker(f"KV store {store.name}: writes", limit_s, clock)

    @property
    def name(self) -> str:
        """Name of the tier."""
        return self._store.name

    @property
    def num_failures(self) -> int:
        """Number of calls that failed or took too long."""
        return self._reads.num_failures + self._writes.num_failures

    @property
    def num_recoveries(self) -> int:
        """How often reads or writes worked again after a failure."""
        return self._reads.num_recoveries + self._writes.num_recoveries

    def count(self, keys: Sequence[Key]) -> int:
        """Return how many keys, from the first on, seem to be stored; 0 while reads are skipped."""
        return self._reads.run(lambda: self._store.count(keys), 0)

    def has(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each key whether it seems to be stored; none while reads are skipped."""
        return self._reads.run(lambda: self._store.has(keys), [False] * len(keys))

    def read(self, key: Key, into: memoryview) -> bool:
        """Read a block; False if it is missing or damaged, and while reads are skipped."""
        return self._reads.run(lambda: self._store.read(key, into), False)

    def write(self, key: Key, block: memoryview) -> int:
        """Store a block; return the number of bytes that were written, 0 while writes are skipped."""
        return self._writes.run(lambda: self._store.write(key, block), 0)

    def use(self) -> StoreUse:
        """Return what the store holds."""
        return self._store.use()

    def clear(self) -> int:
        """Delete all blocks of the namespace, and return their number."""
        return self._store.clear()

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class _Breaker:
    """Counts the failures of one kind of calls, and decides which are skipped. For calls from several threads."""

    def __init__(self, what: str, limit_s: float, clock: Callable[[], float]) -> None:
        self.num_failures = 0
        self.num_recoveries = 0
        self._what = what
        self._limit_s = limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_s = 0.0  # 0: no call is skipped
        self._next_try_s = 0.0
        self._is_trying = False

    def run(self, call: Callable[[], T], otherwise: T) -> T:
        """Return the call's result, or `otherwise` if it is skipped. Raises what the call raises."""
        started_s = self._clock()
        with self._lock:
            is_try = self._pause_s > 0
            if is_try:
                if self._is_trying or started_s < self._next_try_s:
                    return otherwise
                self._is_trying = True
        failure = "the call was interrupted"
        try:
            result = call()
            took_s = self._clock() - started_s
            failure = f"a call took {took_s:.1f} s" if took_s > self._limit_s else ""
            return result
        except StoreUnavailable as error:
            failure = str(error)
            raise
        finally:
            self._record(failure, is_try)

    def _record(self, failure: str, is_try: bool) -> None:
        with self._lock:
            if is_try:
                self._is_trying = False
            if failure:
                self.num_failures += 1
                if not self._pause_s:
                    self._pause_s = FIRST_PAUSE_S
                    logger.warning("%s fail and are skipped until one succeeds: %s", self._what, failure)
                elif is_try:
                    self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
                else:
                    return  # it began before the first failure
                self._next_try_s = self._clock() + self._pause_s
            elif is_try:
                self._pause_s = 0.0
                self.num_recoveries += 1
                logger.warning("%s work again", self._what)
