"""The prefix index where nothing is compiled: a set a worker, which takes more time and more memory."""

from baton.engine.kv.block_hash import BlockHash, split_hashes


class PythonIndex:
    """Owns a set of block hashes for each worker."""

    def __init__(self) -> None:
        self._blocks: dict[str, set[BlockHash]] = {}

    def reset(self, incarnation: str) -> None:
        """Forgets what the worker had."""
        self._blocks.pop(incarnation, None)

    def update(self, incarnation: str, removed: bytes, stored: bytes) -> None:
        """Applies one event."""
        gone, came = split_hashes(removed), split_hashes(stored)
        blocks = self._blocks.setdefault(incarnation, set())
        blocks.difference_update(gone)
        blocks.update(came)

    def match(self, hashes: bytes) -> dict[str, int]:
        """Finds the end of each worker's prefix by bisection."""
        chain = split_hashes(hashes)
        if not chain:
            return {}
        return {name: _prefix_len(blocks, chain) for name, blocks in self._blocks.items() if chain[0] in blocks}

    def num_blocks(self, incarnation: str) -> int:
        """How many blocks the worker has cached."""
        return len(self._blocks.get(incarnation, ()))


def _prefix_len(blocks: set[BlockHash], chain: list[BlockHash]) -> int:
    low, high = 1, len(chain)  # the first `low` are there, none behind `high` is
    while low < high:
        middle = (low + high + 1) // 2
        if chain[middle - 1] in blocks:
            low = middle
        else:
            high = middle - 1
    return low
