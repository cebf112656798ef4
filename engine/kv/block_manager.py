"""Block tables of requests, and all other holds on blocks.

A running or receiving request holds its block table. A remote prefill that fills the blocks of a receiving request
holds them too, until `end_fill`. A finished request may keep its table. A pin holds cached blocks for a reader. A
waiting request holds nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from baton.engine.kv.block_hash import BlockHash, extend_hashes, root_hash
from baton.engine.kv.block_pool import BlockPool
from baton.engine.kv.origin import NO_ORIGINS, KVOrigin
from baton.engine.kv.prefix_cache import PrefixCache
from baton.engine.request import BlockId, Request, RequestId


class BlockManager:
    """Prefix cache and every hold on its blocks."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.block_size = block_size
        self.cache = PrefixCache(BlockPool(num_blocks), enable_prefix_caching)
        self._fills: dict[RequestId, list[BlockId]] = {}
        self._pins: dict[int, list[BlockId]] = {}
        self._num_pins = 0
        # Other models that computed a block's KV, or KV before it in the request that computed it.
        self._origins: dict[BlockId, frozenset[KVOrigin]] = {}

    @property
    def num_usable(self) -> int:
        """Number of blocks that requests can hold."""
        return self.cache.pool.num_blocks - 1

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens need; the last may be partly filled."""
        return -(-num_tokens // self.block_size)

    def num_cached_tokens(self, request: Request) -> int:
        """Return how many tokens of a waiting request are cached now; at least one is always left to compute."""
        return len(self._cached(request)) * self.block_size

    def take(self, request: Request, reserve: int, reads_cache: bool) -> bool:
        """Give a waiting request its cached blocks and new blocks for the rest, and set its number of computed tokens.

        Returns False and changes nothing if that would leave fewer than `reserve` blocks free. At least one token is
        always left to compute.
        """
        cached = self._cached(request) if reads_cache else []
        num_new_blocks = self.num_blocks_for(request.num_tokens) - len(cached)
        if num_new_blocks + reserve > self.cache.num_free_outside(cached):
            return False
        self.cache.pool.hold(cached)
        request.block_table = cached + self._allocate(num_new_blocks)
        request.kv_origins |= self.origins(cached)
        request.num_computed_tokens = len(cached) * self.block_size
        return True

    def grow(self, request: Request, num_unknown: int = 0) -> bool:
        """Allocate blocks for all tokens of the request plus `num_unknown` more.

        Returns False and changes nothing if too few blocks are free.
        """
        num_new_blocks = self.num_blocks_for(request.num_tokens + num_unknown) - len(request.block_table)
        if num_new_blocks > self.cache.pool.num_free:
            return False
        if num_new_blocks > 0:
            request.block_table += self._allocate(num_new_blocks)
        return True

    def free(self, request: Request) -> None:
        """Release all blocks of the request's block table."""
        self.cache.release(request.block_table)
        request.block_table = []

    def advance(self, request: Request, num_computed_tokens: int) -> None:
        """Set the number of computed tokens and store blocks that became full in the prefix cache.

        If the parent of the first such block, perhaps stored by another request, has been evicted, this request's own
        blocks are stored from the first evicted one on.
        """
        first = request.num_computed_tokens // self.block_size
        last = num_computed_tokens // self.block_size
        request.num_computed_tokens = num_computed_tokens
        if self.cache.enabled and last > first:
            self._extend_hashes(request)
            hashes = request.block_hashes
            if request.kv_origins:
                self._note_origins(request, first, last)
            while first > 0 and hashes[first - 1] not in self.cache:
                first -= 1
            for index in range(first, last):
                self.cache.store(request.block_table[index], hashes[index], hashes[index - 1] if index else None)

    def is_filling(self, request_id: RequestId) -> bool:
        """Return whether a remote fill holds blocks of the request, which may have been aborted."""
        return request_id in self._fills

    def begin_fill(self, request: Request) -> None:
        """Start a remote fill: it holds the request's blocks after the computed tokens, in addition to the request."""
        assert not self.is_filling(request.request_id)
        blocks = request.block_table[request.num_computed_tokens // self.block_size :]
        self.cache.pool.hold(blocks)
        self._fills[request.request_id] = blocks

    def end_fill(self, request_id: RequestId) -> None:
        """End a remote fill: nothing more will be written into the request's blocks."""
        self.cache.release(self._fills.pop(request_id))

    def origins(self, blocks: Iterable[BlockId]) -> frozenset[KVOrigin]:
        """Return the other models that computed some of the blocks' KV, or the KV that it was computed from."""
        return NO_ORIGINS.union(*(self._origins[block] for block in blocks if block in self._origins))

    def set_origins(self, request: Request, num_tokens: int, origins: Mapping[BlockId, frozenset[KVOrigin]]) -> None:
        """Record the other models that computed blocks which a request has received, up to `num_tokens`."""
        received = request.block_table[: self.num_blocks_for(num_tokens)]
        self._origins |= {block: origins[block] for block in received if block in origins}
        request.kv_origins |= self.origins(received)

    def pin(self, hashes: Sequence[BlockHash]) -> tuple[int, list[BlockId]]:
        """Hold the longest cached prefix of `hashes` for a reader; returns the pin's id and the blocks."""
        blocks = self.cache.match(hashes)
        self.cache.pool.hold(blocks)
        self._num_pins += 1
        self._pins[self._num_pins] = blocks
        return self._num_pins, blocks

    def unpin(self, pin_id: int) -> None:
        """Release the blocks of a pin."""
        self.cache.release(self._pins.pop(pin_id))

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Assert that every block has exactly its expected holders."""
        holders = [block for request in requests for block in request.block_table]
        for held in (*self._fills.values(), *self._pins.values()):
            holders += held
        self.cache.pool.check_integrity(holders)
        self.cache.check_integrity()

    def _note_origins(self, request: Request, first: int, last: int) -> None:
        """Record the origins of blocks that follow other models' in a block table.

        In the prefix cache they may follow another request's blocks of the same content, which have no origin.
        """
        table = request.block_table
        start = next((index for index, block in enumerate(table[:last]) if block in self._origins), last)
        for block in table[max(first, start) : last]:
            self._origins.setdefault(block, request.kv_origins)

    def _allocate(self, count: int) -> list[BlockId]:
        blocks = self.cache.allocate(count)
        for block in blocks:
            self._origins.pop(block, None)
        return blocks

    def _cached(self, request: Request) -> list[BlockId]:
        """Return a waiting request's cached blocks; for embeddings, which have one fingerprint, only this model's."""
        blocks = self.cache.match(self._usable_hashes(request))
        if request.pooling is None or not self._origins:
            return blocks
        return list(takewhile(lambda block: block not in self._origins, blocks))

    def _usable_hashes(self, request: Request) -> list[BlockHash]:
        if not self.cache.enabled:
            return []
        self._extend_hashes(request)
        return request.block_hashes[: (request.num_tokens - 1) // self.block_size]

    def _extend_hashes(self, request: Request) -> None:
        root = root_hash(request.cache_salt)
        extend_hashes(request.block_hashes, request.token_ids, self.block_size, root)
