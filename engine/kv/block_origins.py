"""Blocks whose KV other models computed: other quantizations of the same one."""

from collections.abc import Iterable, Mapping

from baton.engine.kv.groups import held
from baton.engine.kv.origin import NO_ORIGINS, KVOrigin
from baton.engine.request import BlockId, Request


class BlockOrigins:
    """Other models that computed a block's KV, or KV before it in the request that computed it; most have none."""

    def __init__(self) -> None:
        self._by_block: dict[BlockId, frozenset[KVOrigin]] = {}

    def __contains__(self, block: BlockId) -> bool:
        return block in self._by_block

    def __bool__(self) -> bool:
        return bool(self._by_block)

    def of(self, blocks: Iterable[BlockId]) -> frozenset[KVOrigin]:
        """Return the other models that computed some of the blocks' KV, or the KV that it was computed from."""
        return NO_ORIGINS.union(*(self._by_block[block] for block in blocks if block in self._by_block))

    def record(self, blocks: Iterable[BlockId], origins: Mapping[BlockId, frozenset[KVOrigin]]) -> None:
        """Record the origins of received blocks."""
        self._by_block |= {block: origins[block] for block in blocks if block in origins}

    def forget(self, block: BlockId) -> None:
        """Forget a block that is allocated for other content."""
        self._by_block.pop(block, None)

    def note_computed(self, request: Request, first: int, last: int, has_windows: bool) -> None:
        """Record the origins of computed blocks `first` to `last` that follow other models' in the block tables.

        In the prefix cache they may follow another request's blocks of the same content, which have no origin. Behind a
        window the other models' blocks may have been given back.
        """
        tables = request.block_tables
        foreign = (index for index in range(last) if any(table[index] in self for table in tables))
        start = next(foreign, first if has_windows else last)
        for table in tables:
            for block in held(table[max(first, start) : last]):
                self._by_block.setdefault(block, request.kv_origins)
