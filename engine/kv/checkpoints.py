"""Checkpoints of recurrent state in the prefix cache: the blocks of the state after all tokens of a hash."""

from collections.abc import Container, KeysView, Sequence

from baton.engine.kv.block_hash import BlockHash
from baton.engine.request import BlockId


class StateCheckpoints:
    """Map from the hash of a prefix's last block to the blocks of the state after it, which are evicted together."""

    def __init__(self) -> None:
        self._blocks: dict[BlockHash, list[BlockId]] = {}
        self._hashes: dict[BlockId, BlockHash] = {}

    def __contains__(self, block: BlockId) -> bool:
        return block in self._hashes

    def last(self, hashes: Sequence[BlockHash]) -> int:
        """Return the number of blocks in the longest prefix of `hashes` that ends at a checkpoint."""
        return next((length for length in range(len(hashes), 0, -1) if hashes[length - 1] in self._blocks), 0)

    def at(self, block_hash: BlockHash) -> list[BlockId]:
        """Return the blocks of a stored checkpoint."""
        return list(self._blocks[block_hash])

    def store(self, block_hash: BlockHash, blocks: list[BlockId]) -> bool:
        """Store a checkpoint. Returns False and changes nothing if it is known."""
        if block_hash in self._blocks:
            return False
        self._blocks[block_hash] = list(blocks)
        self._hashes |= dict.fromkeys(blocks, block_hash)
        return True

    def evict(self, block_hash: BlockHash) -> list[BlockId]:
        """Remove the checkpoint of a hash, if there is one, and return its blocks."""
        blocks = self._blocks.pop(block_hash, [])
        for block in blocks:
            del self._hashes[block]
        return blocks

    def hash_of(self, block: BlockId) -> BlockHash | None:
        """Return the hash of the checkpoint that a block is part of, if any."""
        return self._hashes.get(block)

    @property
    def hashes(self) -> KeysView[BlockHash]:
        """The hashes with a checkpoint."""
        return self._blocks.keys()

    def check_integrity(self, hashes: Container[BlockHash], kv_blocks: Container[BlockId]) -> None:
        """Assert that each block is in one place, and that each checkpoint's hash is among `hashes`."""
        expected = {block: block_hash for block_hash, blocks in self._blocks.items() for block in blocks}
        assert self._hashes == expected
        assert len(expected) == sum(map(len, self._blocks.values()))
        assert all(block_hash in hashes for block_hash in self._blocks)
        assert not any(block in kv_blocks for block in expected)
