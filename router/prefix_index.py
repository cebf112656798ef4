"""Which worker has which blocks in its prefix cache, exactly as the workers' cache events tell it."""

from collections.abc import Sequence

from engine.block_hash import HASH_BYTES, BlockHash


def split_hashes(packed: bytes) -> list[BlockHash]:
    """The block hashes of an event, which stand one after the other. Raises ValueError if one is cut short."""
    if len(packed) % HASH_BYTES:
        raise ValueError(f"{len(packed)} bytes are no whole number of {HASH_BYTES}-byte block hashes")
    return [BlockHash(packed[start : start + HASH_BYTES]) for start in range(0, len(packed), HASH_BYTES)]


class PrefixIndex:
    """Owns, per worker, the set of block hashes in its cache.

    A worker's key is its incarnation, so that news of its next life never mixes with this one's.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, set[BlockHash]] = {}

    def reset(self, incarnation: str) -> None:
        """Forgets what the worker had: a snapshot follows, or the worker is gone."""
        self._blocks.pop(incarnation, None)

    def update(self, incarnation: str, removed: bytes, stored: bytes) -> None:
        """Applies one event, what was removed first. Raises ValueError if a hash is cut short."""
        gone, came = split_hashes(removed), split_hashes(stored)
        blocks = self._blocks.setdefault(incarnation, set())
        blocks.difference_update(gone)
        blocks.update(came)

    def match(self, hashes: Sequence[BlockHash]) -> dict[str, int]:
        """For each worker that has the first of a prompt's blocks, how many it has from the first on."""
        matches: dict[str, int] = {}
        if not hashes:
            return matches
        for incarnation, blocks in self._blocks.items():
            if hashes[0] in blocks:
                matches[incarnation] = next(
                    (index for index, each in enumerate(hashes) if each not in blocks), len(hashes)
                )
        return matches

    def num_blocks(self, incarnation: str) -> int:
        """How many blocks the worker has cached."""
        return len(self._blocks.get(incarnation, ()))
