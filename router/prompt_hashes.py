"""The content addresses of a prompt's blocks."""

from collections.abc import Sequence

from baton.engine.kv.block_hash import HASH_BYTES, BlockHash, pack_hashes, root_hash


class PromptHashes:
    """Owns the block hashes of one prompt, so that its choices and their attempts hash it once for each block size."""

    def __init__(self, token_ids: Sequence[int], cache_salt: str) -> None:
        self._token_ids = token_ids
        self._root = root_hash(cache_salt)
        self._hashes: dict[int, bytes] = {}

    def extended(self, token_ids: Sequence[int], block_size: int) -> bytes:
        """Hashes of the full blocks of `token_ids`, one after the other; these are the prompt and what followed it."""
        hashes = self._hashes.get(block_size)
        if hashes is None:
            hashes = self._hashes[block_size] = pack_hashes(self._root, self._token_ids, block_size)
        num_known = len(hashes) // HASH_BYTES
        if num_known == len(token_ids) // block_size:
            return hashes
        parent = BlockHash(hashes[-HASH_BYTES:]) if hashes else self._root
        return hashes + pack_hashes(parent, token_ids, block_size, num_known * block_size)
