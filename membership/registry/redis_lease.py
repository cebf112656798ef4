"""One worker's lease in Redis."""

import asyncio
import logging
import math
import time
from contextlib import suppress

from baton.membership.registry.base import LONGEST_PAUSE_S, LeaseLapsed, Member
from baton.membership.registry.redis_client import REDIS_ERRORS
from baton.membership.registry.redis_store import RedisStore
from baton.rpc.backoff import Backoff

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 1.0
RENEWALS = 4  # per lease: this many may fail before it lapses
LONGEST_LOOK_S = 0.25  # between two looks at the clock


class RedisLease:
    """Registration of a worker. The loss of Redis is a warning, never an error.

    A lease that lapsed while this process stood still is not taken up again.
    """

    def __init__(self, store: RedisStore, name: str, member: Member, lease_s: float) -> None:
        self._store = store
        self._name = name
        self._member = member
        self._lease_s = lease_s
        self._told: Member | None = None  # as last published
        self._changed = asyncio.Event()
        self._is_lost = False
        self._seen_s = math.inf  # monotonic clock when this process was last seen to run
        self._stood_still = False  # for longer than a lease, since the last renewal

    async def keep(self) -> None:
        """Register the worker and renew its lease until cancelled. Raises LeaseLapsed."""
        watching = asyncio.create_task(self._watch_clock())
        try:
            await self._keep_renewed()
        finally:
            watching.cancel()

    async def _keep_renewed(self) -> None:
        backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        pause_s = min(self._lease_s / RENEWALS, LONGEST_PAUSE_S)
        while True:
            self._changed.clear()
            try:
                await self._renew()
            except REDIS_ERRORS as error:
                self._lose(error)
                await backoff.wait()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    async def _watch_clock(self) -> None:
        """Record that the process runs, even while Redis is lost."""
        while True:
            self._look_at_clock()
            await asyncio.sleep(min(LONGEST_LOOK_S, self._lease_s / RENEWALS))

    def _look_at_clock(self) -> None:
        now_s = time.monotonic()
        self._stood_still = self._stood_still or now_s - self._seen_s > self._lease_s
        self._seen_s = now_s

    def update(self, member: Member) -> None:
        """Replace the entry and publish it at once."""
        self._member = member
        self._changed.set()

    async def withdraw(self) -> None:
        """Remove the worker. If Redis is lost, the lease lapses by itself."""
        try:
            await self._store.remove(self._member)
        except REDIS_ERRORS as error:
            logger.warning("%s is lost, the lease there lapses by itself: %s", self._name, error)

    async def _renew(self) -> None:
        member = self._member
        was_lost = self._is_lost
        if self._told != member:
            await self._store.put(member, self._lease_s)
            if self._told is None:
                logger.info("%s is registered at %s", member.worker_id, self._name)
        elif not await self._store.renew(member, self._lease_s):
            self._look_at_clock()
            if self._stood_still:
                raise LeaseLapsed(
                    f"{member.worker_id} stood still for longer than its lease of {self._lease_s:g} s and was given up "
                    "for dead; it ends, and may come back in a new life"
                )
            await self._store.put(member, self._lease_s)
            logger.warning("the lease of %s at %s had lapsed; it is registered again", member.worker_id, self._name)
        elif was_lost:
            logger.info("%s is back, the lease of %s has held", self._name, member.worker_id)
        self._told = member
        self._stood_still = False
        self._is_lost = False

    def _lose(self, error: Exception) -> None:
        if not self._is_lost:
            logger.warning("%s is lost, this worker serves on: %s", self._name, error)
        self._is_lost = True
