"""Block tables of requests, and all other holds on blocks.

A running or receiving request holds its block tables: one for each KV group. Of a group with a window, blocks behind
the window are given back as the request advances, and blocks for a long prompt are allocated step by step. The request
also holds the blocks of its recurrent state, if the model has one, and the checkpoint that its next step reads. A
remote prefill that fills the blocks of a receiving request holds them too, until the fill ends. A finished request may
keep its tables. A pin holds cached blocks for a reader, a prefix pin for a time. A waiting request holds nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, takewhile

from baton.engine.attention.span import FULL
from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.block_origins import BlockOrigins
from baton.engine.kv.block_pool import BlockPool
from baton.engine.kv.fills import Fills
from baton.engine.kv.groups import KVGroups, held
from baton.engine.kv.origin import KVOrigin
from baton.engine.kv.pin import Pin, Pins
from baton.engine.kv.prefix_cache import PrefixCache
from baton.engine.kv.prefix_pins import PrefixPins
from baton.engine.kv.state_layout import StateLayout
from baton.engine.kv.used_blocks import UsedBlock, UsedBlocks
from baton.engine.request import NULL_BLOCK, BlockId, Request


class BlockManager:
    """Prefix cache and every hold on its blocks."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool,
        groups: KVGroups | None = None,
        step_tokens: int = 1 << 30,
    ) -> None:
        """groups: default is one, which attends to the whole context; step_tokens: most tokens that a step computes."""
        self.block_size = block_size
        self.groups = groups or KVGroups(block_size)
        self.cache = PrefixCache(BlockPool(num_blocks), enable_prefix_caching, self.groups)
        self.used: UsedBlocks | None = None  # for stores below the pool, if there are any
        self._step_tokens = step_tokens
        self.fills = Fills(self.cache, block_size)
        self.pins = Pins(self.cache)
        self.prefix_pins = PrefixPins(self.cache)
        self._origins = BlockOrigins()

    @property
    def num_usable(self) -> int:
        """Number of places that requests can hold: each has a block of every group."""
        return (self.cache.pool.num_blocks - 1) // self.groups.num_groups

    @property
    def num_free(self) -> int:
        """Number of free places."""
        return self.cache.pool.num_free // self.groups.num_groups

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks of each group `num_tokens` tokens need; the last may be partly filled."""
        return -(-num_tokens // self.block_size)

    def num_cached_tokens(self, request: Request) -> int:
        """Return how many tokens of a waiting request are cached now; at least one is always left to compute."""
        return len(self._cached(request)[0]) * self.block_size

    def num_idle_cached(self, request: Request) -> int:
        """Return how many blocks of each group a waiting request has cached and shares with no holder: free ones."""
        cached = [block for table in self._cached(request) for block in held(table)]
        return (self.cache.pool.num_free - self.cache.num_free_outside(cached)) // self.groups.num_groups

    def take(self, request: Request, reserve: int, reads_cache: bool) -> bool:
        """Give a waiting request its cached blocks and new blocks for the rest, and set its number of computed tokens.

        Returns False and changes nothing if that would leave fewer than `reserve` places free, unless prefix pins are
        in the way for good: then some are dropped. At least one token is always left to compute.
        """
        tables = self._cached(request) if reads_cache else self.cache.match_groups([])
        num_known = len(tables[0])
        checkpoint = self._checkpoint(request.block_hashes[:num_known])
        cached = [*(block for table in tables for block in held(table)), *checkpoint]
        new, num_state = self._blocks_to_take(request, num_known), self.groups.num_state_blocks
        num_new = sum(map(len, new)) + num_state
        while num_new + reserve * len(tables) > self.cache.num_free_outside(cached):
            if not self.prefix_pins.make_way(num_new, cached):
                return False
        self.cache.pool.hold(cached)
        for table, indices in zip(tables, new, strict=True):
            table += [NULL_BLOCK] * (indices.start - num_known) + self._allocate(len(indices))
        request.block_table, *request.other_tables = tables
        request.checkpoint_blocks, request.state_blocks = checkpoint, self._allocate(num_state)
        request.kv_origins |= self.origins(cached)
        request.num_computed_tokens = request.num_without_states = num_known * self.block_size
        if self.used is not None:
            self.used.note_found(request.block_hashes[:num_known])
        self.cache.pool.spare(held(request.block_table[: min(num_known, request.num_marked_tokens // self.block_size)]))
        return True

    def _blocks_to_take(self, request: Request, num_known: int) -> list[range]:
        """Return the indices of the new blocks of each group that a request with `num_known` cached blocks starts with.

        They are for all its tokens, but with a window only for those that are computed before blocks are given back.
        Requests that peers read or fill get all blocks at once: they could not be preempted to make room for others.
        """
        end = self.num_blocks_for(request.num_tokens)
        if request.receives_kv and request.receives_whole:
            return [range(max(num_known, first), end) for first in self.groups.first_blocks(request.num_tokens)]
        if request.keep_blocks or request.receives_kv:
            return [range(num_known, end) for _ in self.groups.spans]
        soon = num_known * self.block_size + self._step_tokens
        sizes = [span.size for span in self.groups.spans]
        ends = [end if size is None else min(end, self.num_blocks_for(soon + size)) for size in sizes]
        return [range(num_known, each) for each in ends]

    def grow(self, request: Request, num_unknown: int = 0) -> bool:
        """Allocate blocks for all tokens of the request plus `num_unknown` more, or with a window for those of a step.

        Returns False and changes nothing if too few blocks are free.
        """
        num_tokens = request.num_tokens + num_unknown
        whole = self.num_blocks_for(num_tokens)
        others = request.other_tables
        if len(request.block_table) >= whole and not (others and min(map(len, others)) < whole):
            return True  # nearly always
        soon = self.num_blocks_for(min(num_tokens, request.num_computed_tokens + self._step_tokens + 1))
        return self._extend(request, whole, soon)

    def drop_pin_for(self, request: Request) -> bool:
        """Drop a prefix pin if the pins leave a running request too few blocks, even without other requests."""
        whole = self.num_blocks_for(request.num_tokens)
        soon = self.num_blocks_for(min(request.num_tokens, request.num_computed_tokens + self._step_tokens + 1))
        num_new = sum(self._num_missing(request, whole, soon))
        own = [block for table in request.block_tables for block in held(table)]
        return self.prefix_pins.make_way(num_new, [*own, *request.state_blocks, *request.checkpoint_blocks])

    def cover(self, request: Request, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` tokens of a request have blocks.

        Allocates those of groups with a window, as far as blocks are free; may be 0 or less.
        """
        start = request.num_computed_tokens
        if self.groups.has_windows:
            whole = [len(table) for table in self._tables(request, has_window=False)]
            end = min([self.num_blocks_for(start + num_tokens), *whole])
            while end > start // self.block_size and not self._extend(request, 0, end):
                end -= 1
        return min(min(map(len, request.block_tables)) * self.block_size - start, num_tokens)

    def is_short(self, request: Request) -> bool:
        """Return whether the next token of a request lacks a block only in groups with a window: the pool had none."""
        least = request.num_computed_tokens // self.block_size
        windows, whole = (self._tables(request, has_window) for has_window in (True, False))
        return any(len(table) <= least for table in windows) and all(len(table) > least for table in whole)

    def _extend(self, request: Request, whole: int, with_window: int) -> bool:
        """Extend the block tables to these numbers of blocks. Returns False and changes nothing if too few are free."""
        counts = self._num_missing(request, whole, with_window)
        if sum(counts) > self.cache.pool.num_free:
            return False
        for table, count in zip(request.block_tables, counts, strict=True):
            if count:
                table += self._allocate(count)
        return True

    def _num_missing(self, request: Request, whole: int, with_window: int) -> list[int]:
        return [
            max(0, (whole if span == FULL else with_window) - len(table))
            for table, span in zip(request.block_tables, self.groups.spans, strict=True)
        ]

    def _tables(self, request: Request, has_window: bool) -> list[list[BlockId]]:
        tables = zip(request.block_tables, self.groups.spans, strict=True)
        return [table for table, span in tables if (span != FULL) == has_window]

    def drop_gaps(self, request: Request) -> None:
        """Release blocks after the computed tokens in groups with a window: `cover` allocates them without gaps.

        For a request that was to receive its KV whole, and must compute some of it.
        """
        end = self.num_blocks_for(request.num_computed_tokens)
        for table in self._tables(request, has_window=True):
            self.cache.release(held(table[end:]))
            del table[end:]

    def trim(self, request: Request) -> None:
        """Release the blocks after those for all tokens of the request: they were for drafts."""
        end = self.num_blocks_for(request.num_tokens)
        for table in request.block_tables:
            self.cache.release(held(table[end:]))
            del table[end:]

    def free(self, request: Request) -> None:
        """Release all blocks of the request's block tables."""
        for table in reversed(request.block_tables):
            self.cache.release(held(table))
        self.cache.release([*request.state_blocks, *request.checkpoint_blocks])
        request.block_table, request.other_tables = [], []
        request.state_blocks, request.checkpoint_blocks, request.lacks_checkpoint = [], [], False

    def advance(self, request: Request, num_computed_tokens: int) -> None:
        """Set the number of computed tokens, store blocks that became full in the prefix cache, and give back blocks
        to which no later token attends. At a checkpoint, the recurrent state is stored too.

        If the parent of the first full block, perhaps stored by another request, has been evicted, this request's own
        blocks are stored from the first evicted one on.
        """
        first = request.num_computed_tokens // self.block_size
        last = num_computed_tokens // self.block_size
        before, request.num_computed_tokens = request.num_computed_tokens, num_computed_tokens
        if self.cache.enabled and last > first:
            hashes, others = request.hash_blocks(self.block_size), request.other_tables
            if request.kv_origins:
                self._origins.note_computed(request, first, last, self.groups.has_windows)
            while first > 0 and hashes[first - 1] not in self.cache:
                first -= 1
            for index in range(first, last):
                parent = hashes[index - 1] if index else None
                self.cache.store(request.block_table[index], hashes[index], parent, [table[index] for table in others])
            marked = min(last, request.num_marked_tokens // self.block_size)
            self.cache.pool.spare(held(request.block_table[first:marked]))
            if self.used is not None:
                self.used.note(hashes[first:marked], is_popular=True)
                self.used.note(hashes[max(first, marked) : last], is_popular=request.num_cached_tokens > 0)
        if self.groups.has_windows:
            self._give_back(request, before, num_computed_tokens)
        if self.groups.states is not None and num_computed_tokens > before:
            self._advance_state(request, self.groups.states)

    def until_checkpoint(self, request: Request, num_tokens: int) -> int:
        """Return how many of the next `num_tokens` tokens of a request a step may compute: up to a checkpoint."""
        states = self.groups.states
        if states is None or not self.cache.enabled:
            return num_tokens
        distance = self.block_size if request.lacks_checkpoint else states.checkpoint_tokens
        return min(num_tokens, distance - request.num_computed_tokens % distance)

    def _advance_state(self, request: Request, states: StateLayout) -> None:
        """Store the state in the prefix cache if this is a checkpoint, and let the next step write to new blocks.

        Otherwise the next step updates it in place; also if few blocks would be left for the steps of other requests.
        """
        self.cache.release(request.checkpoint_blocks)
        request.checkpoint_blocks = []
        distance = self.block_size if request.lacks_checkpoint else states.checkpoint_tokens
        if not self.cache.enabled or request.num_computed_tokens % distance:
            return
        request.lacks_checkpoint = False
        if self.cache.pool.num_free < 2 * states.num_blocks:
            return
        block_hash = request.block_hashes[request.num_computed_tokens // self.block_size - 1]
        if self.cache.store_checkpoint(block_hash, request.state_blocks):
            request.checkpoint_blocks = request.state_blocks
            request.state_blocks = self._allocate(states.num_blocks)

    def receive(self, request: Request, num_tokens: int) -> None:
        """Advance a request to `num_tokens` tokens whose KV was received instead of computed.

        A checkpoint of the recurrent state is due at the end, or else at that of the next full block.

        Blocks behind their windows were not received: they are given back before the others are stored in the prefix
        cache. Does nothing if a block of the windows is missing, since the transfer was for a longer prefix.
        """
        if self.groups.has_windows and num_tokens > request.num_computed_tokens:
            end, firsts = self.num_blocks_for(num_tokens), self.groups.first_blocks(num_tokens)
            if any(NULL_BLOCK in table[first:end] for table, first in zip(request.block_tables, firsts, strict=True)):
                return
            self._give_back(request, request.num_computed_tokens, num_tokens)
        request.lacks_checkpoint = num_tokens > request.num_computed_tokens
        self.advance(request, num_tokens)
        request.num_without_states = num_tokens

    def _give_back(self, request: Request, before: int, after: int) -> None:
        """Release the blocks to which the token after `before` tokens may attend, and that after `after` does not."""
        firsts = self.groups.first_blocks(before), self.groups.first_blocks(after)
        for table, start, end in zip(request.block_tables, *firsts, strict=True):
            behind = held(table[start:end])
            if behind:
                self.cache.release(behind)
                table[start:end] = [NULL_BLOCK] * (end - start)

    def origins(self, blocks: Iterable[BlockId]) -> frozenset[KVOrigin]:
        """Return the other models that computed some of the blocks' KV, or the KV that it was computed from."""
        return self._origins.of(blocks)

    def set_origins(self, request: Request, num_tokens: int, origins: Mapping[BlockId, frozenset[KVOrigin]]) -> None:
        """Record the other models that computed blocks which a request has received, up to `num_tokens`."""
        end = self.num_blocks_for(num_tokens)
        received = [block for table in request.block_tables for block in held(table[:end])]
        self._origins.record(received, origins)
        request.kv_origins |= self.origins(received)

    def pin(self, hashes: Sequence[BlockHash]) -> Pin:
        """Hold the longest cached prefix of `hashes` for a reader."""
        tables = self.cache.match_groups(hashes)
        num_blocks = len(tables[0])
        state = self._checkpoint(hashes[:num_blocks])
        blocks = self.groups.transfer_order(num_blocks * self.block_size).blocks(tables, state=state)
        return self.pins.hold(blocks, num_blocks)

    def take_used(self, count: int) -> list[UsedBlock]:
        """Return about `count` used blocks that are cached and whose KV this model computed; see `UsedBlocks`."""
        assert self.used is not None
        return self.used.take_cached(count, self.cache, self._origins)

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Assert that every block has exactly its expected holders."""
        requests = list(requests)
        holders = [block for request in requests for table in request.block_tables for block in held(table)]
        holders += [block for request in requests for block in (*request.state_blocks, *request.checkpoint_blocks)]
        holders += chain(self.fills, self.pins, self.prefix_pins)
        self.cache.pool.check_integrity(holders)
        self.cache.check_integrity()

    def _allocate(self, count: int) -> list[BlockId]:
        blocks = self.cache.allocate(count)
        for block in blocks:
            self._origins.forget(block)
        return blocks

    def _cached(self, request: Request) -> list[list[BlockId]]:
        """Return a waiting request's cached block tables.

        For embeddings, which have one fingerprint, only blocks of this model, and with windows none if others have
        computed any: behind a window there may have been one of theirs.
        """
        tables = self.cache.match_groups(self._usable_hashes(request))
        if request.pooling is None or not self._origins:
            return tables
        if self.groups.has_windows:
            return self.cache.match_groups([])
        return [list(takewhile(lambda block: block not in self._origins, tables[0]))]

    def _checkpoint(self, hashes: Sequence[BlockHash]) -> list[BlockId]:
        """Return the blocks of the cached state after a prefix that `match_groups` found; none without states."""
        return self.cache.checkpoints.at(hashes[-1]) if hashes and self.groups.states is not None else []

    def _usable_hashes(self, request: Request) -> list[BlockHash]:
        if not self.cache.enabled:
            return []
        return request.hash_blocks(self.block_size)[: (request.num_tokens - 1) // self.block_size]
