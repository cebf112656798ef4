"""The content addresses of a prompt's blocks."""

from collections.abc import Sequence

from engine.block_hash import BlockHash, extend_hashes, root_hash


class PromptHashes:
    """Owns the block hashes of one prompt, so that its choices and their attempts hash it once for each block size."""

    def __init__(self, token_ids: Sequence[int], cache_salt: str) -> None:
        self._token_ids = token_ids
        self._root = root_hash(cache_salt)
        self._hashes: dict[int, list[BlockHash]] = {}

    def extended(self, token_ids: Sequence[int], block_size: int) -> list[BlockHash]:
        """Hashes of the full blocks of `token_ids`: the prompt, and what was generated after it."""
        hashes = self._hashes.get(block_size)
        if hashes is None:
            hashes = self._hashes[block_size] = []
            extend_hashes(hashes, self._token_ids, block_size, self._root)
        hashes = list(hashes)
        extend_hashes(hashes, token_ids, block_size, self._root)
        return hashes
