"""Pure-Python fallback of the compiled block hash chain."""

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

TOKEN_BYTES = 4


def chain_hashes(parent: bytes, token_ids: Sequence[int], block_size: int, start: int) -> bytes:
    """Return the same bytes as the compiled function of this name; see `pack_hashes`."""
    num_tokens = max(len(token_ids) - start, 0) // block_size * block_size
    tokens = array("I", token_ids[start : start + num_tokens])
    if sys.byteorder == "big":
        tokens.byteswap()
    packed, block_bytes = memoryview(tokens).cast("B"), block_size * TOKEN_BYTES
    hashes = []
    for first in range(0, len(packed), block_bytes):
        state = blake2b(parent, digest_size=len(parent))
        state.update(packed[first : first + block_bytes])
        parent = state.digest()
        hashes.append(parent)
    return b"".join(hashes)
