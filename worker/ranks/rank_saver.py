"""The stores of a follower rank: its shards of the blocks that the first rank fetches and saves."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from baton.engine.kv.block_hash import HASH_BYTES
from baton.kvtransfer.store.store import Key
from baton.kvtransfer.threads import run_in_thread, settled
from baton.protos import rank_pb2
from baton.worker.kv.rank_stores import RankStores
from baton.worker.kv.tier_writer import TierWriters
from baton.worker.ranks.stored_receive import StoredReceive

logger = logging.getLogger(__name__)

FLUSH_S = 2.0  # for blocks that are not written when the worker ends


class RankSaver:
    """Executes the first rank's commands; owns the rank's stores from `open` on."""

    def __init__(self) -> None:
        self._stores: RankStores | None = None
        self._writers = TierWriters(())
        self._batch = 0  # number of the copied batch
        self._copies: NDArray[np.uint8] | None = None

    def open(self, stores: RankStores) -> None:
        """Use these stores, which the first rank has, too."""
        self._stores = stores
        self._writers = TierWriters(stores.tiers)

    def fetch(self, command: rank_pb2.FetchStored, send: Callable[[Message], None]) -> StoredReceive:
        """Begin to read blocks."""
        stores, blocks = self._opened(), list(command.block_ids)
        tiers = [stores.tiers[number] for number in command.tiers]
        return StoredReceive(stores.read(tiers, _keys(command.keys), blocks), blocks, tiers, send)

    async def copy(self, command: rank_pb2.CopyStored) -> None:
        """Copy blocks out of the pool, unless another rank saves them."""
        stores = self._opened()
        self._batch, self._copies = command.batch, None
        if not stores.saves:
            return
        copying = run_in_thread("kv-copy", partial(stores.copy, list(command.block_ids)))
        await settled(copying)
        if self._batch == command.batch:
            self._copies = copying.result()

    async def write(self, command: rank_pb2.WriteStored) -> None:
        """Queue copies for all stores that have room."""
        copies, self._copies = self._copies, None
        if copies is not None and self._batch == command.batch and command.copies:
            await self._writers.put(self._opened().batch(_keys(command.keys), copies, list(command.copies)))

    async def clear(self, command: rank_pb2.ClearStored) -> int:
        """Delete all blocks of a store; return the number of their shards. Raises StoreUnavailable."""
        return await run_in_thread("kv-clear", self._opened().tiers[command.tier].store.clear)

    async def close(self) -> None:
        """Write what is left, and close the stores."""
        await self._writers.flush(FLUSH_S)
        await self._writers.close()
        for tier in self._stores.tiers if self._stores is not None else ():
            if all(call.done() for call in tier.late):
                await asyncio.to_thread(tier.store.close)

    def _opened(self) -> RankStores:
        assert self._stores is not None, "a rank without stores got a command for them"
        return self._stores


def _keys(keys: bytes) -> Sequence[Key]:
    return [keys[first : first + HASH_BYTES] for first in range(0, len(keys), HASH_BYTES)]
