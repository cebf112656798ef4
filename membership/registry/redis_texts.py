"""Texts in Redis that lapse: a key for each text, and a set of the ids.

The id of a lapsed text stays in the set until a listing removes it. The next renewal of a live text adds its id again
and repairs keys of a wrong type and texts that were overwritten. A listing deletes a set with an id that is too long to
be read, and renewals add the ids of live texts again.
"""

import logging
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import ResponseError

from baton.membership.registry.redis_client import ReplyTooLong, done

logger = logging.getLogger(__name__)

BATCH = 100  # texts read at once
MAX_BATCH_BYTES = 1 << 24
MAX_ID_BYTES = 512
MAX_TEXTS = 10_000  # per listing; further ones are not read
MAX_LISTING_BYTES = 1 << 28  # of one listing's texts; the batch that goes beyond is the last


@dataclass(slots=True)
class Texts:
    """Result of a listing."""

    by_id: dict[bytes, str] = field(default_factory=dict)
    malformed: dict[bytes, str] = field(default_factory=dict)  # reasons, by id
    num_bytes: int = 0  # of the texts

    def add(self, text_id: bytes, stored: bytes) -> None:
        """Note the text of an id."""
        self.num_bytes += len(stored)
        try:
            self.by_id[text_id] = stored.decode()
        except UnicodeDecodeError as error:
            self.malformed[text_id] = str(error)

    @property
    def is_full(self) -> bool:
        """Whether the listing ends here, with entries left unread."""
        return len(self.by_id) + len(self.malformed) >= MAX_TEXTS or self.num_bytes >= MAX_LISTING_BYTES


class LapsingTexts:
    """Owns no connection; every method raises one of REDIS_ERRORS if Redis is lost."""

    def __init__(self, client: Any, key: str, index: str, max_bytes: int) -> None:
        """`key` is what the texts' keys begin with, before their ids; `index` is the set's; longer texts are unread."""
        self._client = client
        self._key = key
        self._index = index
        self._max_bytes = max_bytes
        self._batch = max(1, min(BATCH, MAX_BATCH_BYTES // max_bytes))

    async def put(self, text_id: str, text: str, lease_s: float) -> None:
        """Store a text for this many seconds."""
        await done(self._client.set(self._key + text_id, text, px=round(lease_s * 1000)))
        await self._add(text_id)

    async def renew(self, text_id: str, text: str, lease_s: float) -> bool:
        """Extend a text's time; return False, without an effect, if it had lapsed."""
        if not await done(self._client.set(self._key + text_id, text, px=round(lease_s * 1000), xx=True)):
            return False
        await self._add(text_id)
        return True

    async def remove(self, text_id: str) -> None:
        """Remove a text."""
        await done(self._client.delete(self._key + text_id))
        await done(self._client.srem(self._index, text_id))

    async def all(self) -> Texts:
        """Return the texts that have not lapsed, read in batches so that the event loop keeps running."""
        found = Texts()
        cursor = 0
        while True:
            try:
                cursor, ids = await done(self._client.sscan(self._index, cursor, count=BATCH))
            except ReplyTooLong as error:
                await self._drop_index(error, found)
                return found
            for start in range(0, len(ids), self._batch):
                await self._read(ids[start : start + self._batch], found)
                if found.is_full:
                    return found
            if not int(cursor):
                return found

    async def _drop_index(self, error: ReplyTooLong, found: Texts) -> None:
        """Delete the set, which cannot be read and would stay so: no command returns only the ids that are short."""
        logger.warning("%s is deleted, its members return when they renew their leases: %s", self._index, error)
        found.malformed[self._index.encode()] = str(error)
        await done(self._client.delete(self._index))

    async def _add(self, text_id: str) -> None:
        try:
            await done(self._client.sadd(self._index, text_id))
        except ResponseError as error:
            if not is_wrong_type(error):
                raise
            logger.warning("%s in the registry was no set, and is replaced by one", self._index)
            await done(self._client.delete(self._index))
            await done(self._client.sadd(self._index, text_id))

    async def _read(self, ids: list[bytes], found: Texts) -> None:
        """Add what stands there under these ids; those that lapsed, and those that no id is, leave the set."""
        possible = [each for each in ids if len(each) <= MAX_ID_BYTES]
        lapsed = [each for each in ids if len(each) > MAX_ID_BYTES]
        pipeline = self._client.pipeline(transaction=False)
        for each in possible:
            pipeline.getrange(self._key.encode() + each, 0, self._max_bytes)  # one byte more than a text may have
        answers = await done(pipeline.execute(raise_on_error=False)) if possible else ()
        for text_id, answer in zip(possible, answers, strict=True):
            if isinstance(answer, Exception):
                if not is_wrong_type(answer):
                    raise answer
                found.malformed[text_id] = "it is no text"
            elif not answer:
                lapsed.append(text_id)
            elif len(answer) > self._max_bytes:
                found.malformed[text_id] = f"it is longer than {self._max_bytes} bytes"
            else:
                found.add(text_id, answer)
        if lapsed:
            await done(self._client.srem(self._index, *lapsed))


def is_wrong_type(error: Exception) -> bool:
    """Whether a command failed because its key holds another type of value."""
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")
