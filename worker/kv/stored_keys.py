"""Keys under which stores have the blocks of a prefix, one for each shard of a block.

A block of the first KV group, if it is not divided, has the hash of its tokens as its key. The key of another one is a
hash of that, its number among the blocks of the hash and its shard, which name what it has whichever ranks wrote it:
workers whose ranks share a block otherwise find it, too, if their blocks have as many shards.
"""

from collections.abc import Iterable
from hashlib import blake2b

from baton.engine.kv.block_hash import HASH_BYTES, BlockHash
from baton.kvtransfer.store.store import Key


def block_key(block_hash: BlockHash, number: int) -> Key:
    """Return the key of a block; number: see `BlockPlace`."""
    return block_hash if number == 0 else _hash(block_hash, b"group or state", number)


def shard_keys(keys: Iterable[Key], shards: range, num_shards: int) -> list[Key]:
    """Return the keys of some of the `num_shards` shards of each block."""
    if num_shards == 1:
        return list(keys)
    return [_hash(key, b"shard of %d" % num_shards, shard) for key in keys for shard in shards]


def _hash(key: Key, kind: bytes, number: int) -> Key:
    return blake2b(b"%b %b %d" % (key, kind, number), digest_size=HASH_BYTES).digest()
