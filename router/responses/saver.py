"""Stores one response at its end."""

import logging

from baton.router.responses.items import Json
from baton.router.responses.store.base import Record, ResponseStore, StoreLost, TenantId
from baton.router.responses.stored import PackedInput, encode

logger = logging.getLogger(__name__)


class ResponseSaver:
    """A response that is being generated, with its input items, until it is stored."""

    def __init__(
        self, store: ResponseStore, tenant: TenantId, response_id: str, previous_id: str | None, packed: PackedInput
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._response_id = response_id
        self._previous_id = previous_id
        self._packed = packed

    async def save(self, response: Json | None) -> bool:
        """Store the response object; None: it failed. Return whether it was stored."""
        if response is None:
            return False
        record = Record(self._previous_id, await encode(self._packed, response))
        try:
            if await self._store.put(self._tenant, self._response_id, record):
                return True
        except StoreLost as error:
            logger.debug("%s is not stored: %s", self._response_id, error)  # the store logs its loss
            return False
        logger.warning("%s is not stored: %d bytes are too many", self._response_id, record.num_bytes)
        return False
