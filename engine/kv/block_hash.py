"""Content hashes of KV blocks: a full block's hash covers its tokens and, through its parent, the whole prefix."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NewType

try:
    from baton.engine.native.block_hash import chain_hashes
except ImportError:  # installed without the compiled extensions
    from baton.engine.kv.python_block_hash import chain_hashes

BlockHash = NewType("BlockHash", bytes)

HASH_BYTES = 16


def root_hash(cache_salt: str = "", adapter: str = "") -> BlockHash:
    """Return the parent hash of a first block.

    Different salts or adapters share no hashes, so no tenant can find another's blocks.
    """
    digest = blake2b(digest_size=HASH_BYTES, person=b"baton-kv-root")
    for part in (cache_salt, adapter):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return BlockHash(digest.digest())


def pack_hashes(parent: BlockHash, token_ids: Sequence[int], block_size: int, start: int = 0) -> bytes:
    """Return the concatenated hashes of the full blocks of `token_ids` from token `start` on.

    `parent` is the hash of the block before them. A block's hash is BLAKE2b (RFC 7693) of its parent's hash and its
    tokens as little-endian 32-bit integers. It is cryptographic, since a collision would give one prompt the KV of
    another. Raises OverflowError for a token id that takes more than 32 bits.
    """
    return chain_hashes(parent, token_ids, block_size, start)


def split_hashes(packed: bytes) -> list[BlockHash]:
    """Split concatenated block hashes. Raises ValueError if the last one is incomplete."""
    if len(packed) % HASH_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a whole number of {HASH_BYTES}-byte block hashes")
    return [BlockHash(packed[start : start + HASH_BYTES]) for start in range(0, len(packed), HASH_BYTES)]


def extend_hashes(hashes: list[BlockHash], token_ids: Sequence[int], block_size: int, root: BlockHash) -> None:
    """Append to `hashes` the hashes of the full blocks of `token_ids` that it lacks."""
    parent = hashes[-1] if hashes else root
    hashes += split_hashes(pack_hashes(parent, token_ids, block_size, len(hashes) * block_size))


def hash_blocks(token_ids: Sequence[int], block_size: int, cache_salt: str = "", adapter: str = "") -> list[BlockHash]:
    """Return the hashes of the full blocks of `token_ids`, in order."""
    return split_hashes(pack_hashes(root_hash(cache_salt, adapter), token_ids, block_size))
