"""Content hashes of KV blocks: a full block's hash covers its tokens and, through its parent, the whole prefix."""

from collections.abc import Mapping, Sequence
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


NO_MARKS: Mapping[int, bytes] = {}


def pack_hashes(
    parent: BlockHash,
    token_ids: Sequence[int],
    block_size: int,
    start: int = 0,
    marks: Mapping[int, bytes] = NO_MARKS,
) -> bytes:
    """Return the concatenated hashes of the full blocks of `token_ids` from token `start` on.

    `parent` is the hash of the block before them. `marks` are what the hashes of some blocks, by their index, cover in
    addition to the tokens; see `hash_marks`. A block's hash is BLAKE2b (RFC 7693) of its parent's hash and its
    tokens as little-endian 32-bit integers. It is cryptographic, since a collision would give one prompt the KV of
    another. Raises OverflowError for a token id that takes more than 32 bits.
    """
    first, num_blocks = start // block_size, len(token_ids) // block_size
    packed = b""
    for block in sorted(block for block in marks if first <= block < num_blocks):
        at = block * block_size
        packed += chain_hashes(parent, token_ids[:at], block_size, start)
        parent = _marked(BlockHash(packed[-HASH_BYTES:]) if packed else parent, marks[block])
        packed += chain_hashes(parent, token_ids[: at + block_size], block_size, at)
        parent, start = BlockHash(packed[-HASH_BYTES:]), at + block_size
    return packed + chain_hashes(parent, token_ids, block_size, start)


def _marked(parent: BlockHash, mark: bytes) -> BlockHash:
    """Return the parent hash of a block with a mark."""
    return BlockHash(blake2b(parent + mark, digest_size=HASH_BYTES, person=b"baton-kv-mark").digest())


def split_hashes(packed: bytes) -> list[BlockHash]:
    """Split concatenated block hashes. Raises ValueError if the last one is incomplete."""
    if len(packed) % HASH_BYTES:
        raise ValueError(f"{len(packed)} bytes are not a whole number of {HASH_BYTES}-byte block hashes")
    return [BlockHash(packed[start : start + HASH_BYTES]) for start in range(0, len(packed), HASH_BYTES)]


def extend_hashes(
    hashes: list[BlockHash],
    token_ids: Sequence[int],
    block_size: int,
    root: BlockHash,
    marks: Mapping[int, bytes] = NO_MARKS,
) -> None:
    """Append to `hashes` the hashes of the full blocks of `token_ids` that it lacks; `marks`: see `pack_hashes`."""
    parent = hashes[-1] if hashes else root
    hashes += split_hashes(pack_hashes(parent, token_ids, block_size, len(hashes) * block_size, marks))


def hash_blocks(token_ids: Sequence[int], block_size: int, cache_salt: str = "", adapter: str = "") -> list[BlockHash]:
    """Return the hashes of the full blocks of `token_ids`, in order."""
    return split_hashes(pack_hashes(root_hash(cache_salt, adapter), token_ids, block_size))
