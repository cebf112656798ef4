"""Holds of remote prefills on the blocks that they fill."""

from collections.abc import Iterator

from baton.engine.kv.groups import held
from baton.engine.kv.prefix_cache import PrefixCache
from baton.engine.request import BlockId, Request, RequestId


class Fills:
    """Blocks that remote prefills write to, held in addition to their request, which may have been aborted."""

    def __init__(self, cache: PrefixCache, block_size: int) -> None:
        self._cache = cache
        self._block_size = block_size
        self._blocks: dict[RequestId, list[BlockId]] = {}

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._blocks

    def __len__(self) -> int:
        """Return the number of remote prefills."""
        return len(self._blocks)

    def __iter__(self) -> Iterator[BlockId]:
        """Iterate over the held blocks of all fills."""
        for blocks in self._blocks.values():
            yield from blocks

    def begin(self, request: Request) -> None:
        """Hold the request's blocks after the computed tokens, and those of its recurrent state."""
        assert request.request_id not in self
        first = request.num_computed_tokens // self._block_size
        blocks = [block for table in request.block_tables for block in held(table[first:])] + request.state_blocks
        self._cache.pool.hold(blocks)
        self._blocks[request.request_id] = blocks

    def end(self, request_id: RequestId) -> None:
        """Release the blocks: nothing more is written to them."""
        self._cache.release(self._blocks.pop(request_id))
