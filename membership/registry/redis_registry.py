"""The registry in Redis."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from baton.membership.registry.base import Listener, Member, RegistryLost, RegistryView
from baton.membership.registry.redis_client import REDIS_ERRORS, ReplyTooLong
from baton.membership.registry.redis_lease import FIRST_BACKOFF_S, LAST_BACKOFF_S, RedisLease
from baton.membership.registry.redis_store import RedisStore
from baton.membership.registry.redis_texts import LapsingTexts
from baton.rpc.backoff import Backoff
from baton.settings.registry_url import RegistryUrl

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
LEASE_S = 5.0  # a report that is not replaced lapses after this


class RedisReports:
    """Reports of processes of one kind in Redis."""

    def __init__(self, texts: LapsingTexts) -> None:
        self._texts = texts

    async def keep(self, process_id: str, make: Callable[[], str]) -> None:
        """Publish a new report once a second while Redis is reachable, until cancelled; then remove it."""
        level = logging.ERROR  # of the first report that cannot be made
        try:
            while True:
                try:
                    await self._texts.put(process_id, make(), LEASE_S)
                except REDIS_ERRORS as error:  # the follower of the members warns of it
                    logger.debug("%s has not told of itself: %s", process_id, error)
                except Exception:  # a report that cannot be made must not end those that can
                    logger.log(level, "%s has not told of itself", process_id, exc_info=True)
                    level = logging.DEBUG
                await asyncio.sleep(PERIOD_S)
        finally:
            with suppress(*REDIS_ERRORS):  # otherwise it lapses by itself
                await self._texts.remove(process_id)

    async def publish(self, process_id: str, text: str) -> None:
        """Publish a report for LEASE_S. Raises RegistryLost."""
        try:
            await self._texts.put(process_id, text, LEASE_S)
        except REDIS_ERRORS as error:
            raise RegistryLost(f"{type(error).__name__}: {error}") from error

    async def read(self) -> tuple[str, ...]:
        """Return all reports that have not lapsed. Raises RegistryLost."""
        try:
            return tuple((await self._texts.all()).by_id.values())
        except REDIS_ERRORS as error:
            raise RegistryLost(f"{type(error).__name__}: {error}") from error


RECONCILE_S = 2.0  # between listings without announcements: leases lapse silently
LEAST_PAUSE_S = 0.1  # between two listings, however many announcements there are


class RedisRegistry:
    """Owns one process's connections to the registry."""

    def __init__(self, url: RegistryUrl) -> None:
        self._url = url
        self._store = RedisStore(url)
        self.reports = RedisReports(self._store.reports)
        self.plans = RedisReports(self._store.plans)

    @property
    def name(self) -> str:
        """The URL without passwords."""
        return str(self._url)

    def lease(self, member: Member, lease_s: float) -> RedisLease:
        """Return an entry for a worker."""
        return RedisLease(self._store, self.name, member, lease_s)

    async def follow(self, listener: Listener) -> None:
        """Report the members after each listing; while Redis is lost, report that, with the last known members."""
        backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        view = RegistryView()
        while True:
            try:
                async with self._store.changes() as changes:
                    while True:
                        listing = await self._store.members()
                        if view.error is not None:
                            logger.info("%s is back, with %d workers", self.name, len(listing.members))
                        view = RegistryView(listing.members, is_listed=True, num_malformed=listing.num_malformed)
                        listener(view)
                        await asyncio.sleep(LEAST_PAUSE_S)
                        await changes.wait(RECONCILE_S)
            except ReplyTooLong as error:
                logger.warning("an announcement at %s is left unread: %s", self.name, error)
                view = replace(view, num_malformed=view.num_malformed + 1)
                listener(view)
            except REDIS_ERRORS as error:
                if view.error is None:
                    logger.warning("%s is lost, serving on with the workers known: %s", self.name, error)
                view = replace(view, error=f"{type(error).__name__}: {error}")
                listener(view)
            await backoff.wait()

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()
