"""Texts in Redis that lapse, each under a key of its own, and the set of what there is.

An id whose text lapsed stays in the set until somebody lists the texts and takes it out; one that is kept all the same
is back in the set with the next renewal.
"""

from typing import Any

from baton.rpc.registry.redis_client import done

BATCH = 100  # texts read at once


class LapsingTexts:
    """Owns no connection; every method raises one of REDIS_ERRORS if Redis is lost."""

    def __init__(self, client: Any, key: str, index: str) -> None:
        """`key` is what the texts' keys begin with, before their ids; `index` is the set's."""
        self._client = client
        self._key = key
        self._index = index

    async def put(self, text_id: str, text: str, lease_s: float) -> None:
        """The text is there for so many seconds."""
        await done(self._client.set(self._key + text_id, text, px=round(lease_s * 1000)))
        await done(self._client.sadd(self._index, text_id))

    async def renew(self, text_id: str, lease_s: float) -> bool:
        """The text is there for so many seconds more; False if it had lapsed, and then it is not."""
        if not await done(self._client.pexpire(self._key + text_id, round(lease_s * 1000))):
            return False
        await done(self._client.sadd(self._index, text_id))
        return True

    async def remove(self, text_id: str) -> None:
        """The text is gone."""
        await done(self._client.delete(self._key + text_id))
        await done(self._client.srem(self._index, text_id))

    async def all(self) -> dict[str, str]:
        """What has not lapsed, by id; read in batches, so that a thousand hold nobody up."""
        texts: dict[str, str] = {}
        cursor = 0
        while True:
            cursor, ids = await done(self._client.sscan(self._index, cursor, count=BATCH))
            if ids:
                texts |= await self._read(ids)
            if not int(cursor):
                return texts

    async def _read(self, ids: list[str]) -> dict[str, str]:
        """What stands there under these ids; those that lapsed are taken out of the set."""
        texts = await done(self._client.mget([self._key + each for each in ids]))
        found = dict(zip(ids, texts, strict=True))
        lapsed = [each for each, text in found.items() if text is None]
        if lapsed:
            await done(self._client.srem(self._index, *lapsed))
        return {each: text for each, text in found.items() if text is not None}
