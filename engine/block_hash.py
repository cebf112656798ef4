"""Content addresses of KV blocks: a full block's hash covers its tokens and, through its parent, all before them."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import NewType

BlockHash = NewType("BlockHash", bytes)

HASH_BYTES = 16


def root_hash(cache_salt: str = "", adapter: str = "") -> BlockHash:
    """Parent of a first block. Different salts or adapters share no hash, so no tenant can find another's blocks."""
    digest = blake2b(digest_size=HASH_BYTES, person=b"baton-kv-root")
    for part in (cache_salt, adapter):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return BlockHash(digest.digest())


def extend_hashes(hashes: list[BlockHash], token_ids: Sequence[int], block_size: int, root: BlockHash) -> None:
    """Appends the hashes of the full blocks of `token_ids` that `hashes` lacks.

    A block's hash is BLAKE2b (RFC 7693) of its parent's hash and its tokens as little-endian 32-bit numbers; a
    cryptographic hash, since a collision would hand one prompt the KV of another.
    """
    parent = hashes[-1] if hashes else root
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        tokens = array("I", token_ids[start : start + block_size])
        parent = BlockHash(blake2b(parent + tokens.tobytes(), digest_size=HASH_BYTES).digest())
        hashes.append(parent)


def hash_blocks(token_ids: Sequence[int], block_size: int, cache_salt: str = "", adapter: str = "") -> list[BlockHash]:
    """Hashes of the full blocks of `token_ids`, in order."""
    hashes: list[BlockHash] = []
    extend_hashes(hashes, token_ids, block_size, root_hash(cache_salt, adapter))
    return hashes
