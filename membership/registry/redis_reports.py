"""Routers' reports in Redis."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from baton.membership.registry.base import RegistryLost
from baton.membership.registry.redis_client import REDIS_ERRORS
from baton.membership.registry.redis_texts import LapsingTexts

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
LEASE_S = 5.0  # a report without a successor is gone after this, as its router is


class RedisReports:
    """One process's view of the reports that stand there."""

    def __init__(self, texts: LapsingTexts) -> None:
        self._texts = texts

    async def keep(self, router_id: str, make: Callable[[], str]) -> None:
        """Puts a new report there once a second, as far as Redis is there, until cancelled; then takes it out."""
        level = logging.ERROR  # of a report that cannot be made: said aloud once
        try:
            while True:
                try:
                    await self._texts.put(router_id, make(), LEASE_S)
                except REDIS_ERRORS as error:  # whoever follows the members says so louder
                    logger.debug("%s has not told of itself: %s", router_id, error)
                except Exception:  # a report that cannot be made must not end those that can
                    logger.log(level, "%s has not told of itself", router_id, exc_info=True)
                    level = logging.DEBUG
                await asyncio.sleep(PERIOD_S)
        finally:
            with suppress(*REDIS_ERRORS):  # then it lapses by itself
                await self._texts.remove(router_id)

    async def read(self) -> tuple[str, ...]:
        """All that have not lapsed. Raises RegistryLost."""
        try:
            return tuple((await self._texts.all()).by_id.values())
        except REDIS_ERRORS as error:
            raise RegistryLost(f"{type(error).__name__}: {error}") from error
