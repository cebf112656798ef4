"""Prefix index in pure Python: one set per worker. It is slower and takes more memory than the compiled one."""

from baton.engine.kv.block_hash import BlockHash, split_hashes


class PythonIndex:
    """A set of block hashes for each worker."""

    def __init__(self) -> None:
        self._blocks: dict[str, set[BlockHash]] = {}

    def reset(self, incarnation: str) -> None:
        """Remove a worker's blocks."""
        self._blocks.pop(incarnation, None)

    def update(self, incarnation: str, removed: bytes, stored: bytes) -> None:
        """Apply one cache event. Raises ValueError, and changes nothing, for a truncated hash."""
        removed_hashes, stored_hashes = split_hashes(removed), split_hashes(stored)
        blocks = self._blocks.setdefault(incarnation, set())
        blocks.difference_update(removed_hashes)
        blocks.update(stored_hashes)

    def match(self, hashes: bytes) -> dict[str, int]:
        """Return the length of each worker's longest prefix in blocks, by bisection."""
        chain = split_hashes(hashes)
        if not chain:
            return {}
        return {name: _prefix_len(blocks, chain) for name, blocks in self._blocks.items() if chain[0] in blocks}

    def num_blocks(self, incarnation: str) -> int:
        """Return the number of blocks that the worker has cached."""
        return len(self._blocks.get(incarnation, ()))


def _prefix_len(blocks: set[BlockHash], chain: list[BlockHash]) -> int:
    low, high = 1, len(chain)  # the first `low` blocks are in the set, none after the first `high` is
    while low < high:
        middle = (low + high + 1) // 2
        if chain[middle - 1] in blocks:
            low = middle
        else:
            high = middle - 1
    return low
