"""Fetches and saves of a follower rank's shards of stored blocks, seen from the first rank."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from google.protobuf.message import Message

from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.store.store import Key
from baton.protos import rank_pb2


class RemoteFetch:
    """The rank's latest progress with a fetch; a RankFetch."""

    def __init__(self, blocks: Sequence[int]) -> None:
        self.blocks = frozenset(blocks)
        self.num_read = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_complete(self) -> bool:
        """Whether no more writes follow."""
        return self.ended.done()

    def take(self, progress: rank_pb2.ReceiveProgress) -> None:
        """Record the rank's progress."""
        self.num_read = progress.num_read
        if progress.has_ended and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: TransferError) -> None:
        """End the fetch with the first error."""
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # retrieved: there may be no waiter


class RemoteSave:
    """The saving of a batch by the rank; a RankSave."""

    def __init__(self, number: int, blocks: Sequence[int], ask: Callable[[Message], Awaitable[object]]) -> None:
        """`ask` sends a command and waits for its response."""
        self._number = number
        self._ask = ask
        self._copying = asyncio.ensure_future(ask(rank_pb2.CopyStored(batch=number, block_ids=blocks)))
        self._copying.add_done_callback(lambda done: done.cancelled() or done.exception())  # there may be no waiter

    async def copied(self) -> None:
        """Return when the blocks are copied. Raises PeerLost."""
        await self._copying

    async def write(self, keys: Sequence[Key], copies: Sequence[int]) -> None:
        """Queue copies; see RankSave."""
        await self._ask(rank_pb2.WriteStored(batch=self._number, keys=b"".join(keys), copies=copies))
