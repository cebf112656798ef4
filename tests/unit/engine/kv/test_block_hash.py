"""Block hashes are chained, salted, and the same in every process."""

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b

import numpy as np
import pytest

import baton.engine.kv.block_hash
import baton.engine.kv.python_block_hash
from baton.engine.kv.block_hash import HASH_BYTES, extend_hashes, hash_blocks, pack_hashes, root_hash, split_hashes

# Both are the same function if nothing was compiled.
CHAINS = [baton.engine.kv.block_hash.chain_hashes, baton.engine.kv.python_block_hash.chain_hashes]
Chain = Callable[[bytes, Sequence[int], int, int], bytes]

KNOWN = [
    "8e209acee69628ae3644e75ca0dff2b4",
    "1e50952d3dabf3b11e1d15bd0e0f2acd",
]


def test_hashes_have_known_values() -> None:
    hashes = hash_blocks(list(range(32)), 16)
    assert [each.hex() for each in hashes] == KNOWN


def test_only_full_blocks_are_hashed() -> None:
    assert [len(hash_blocks(list(range(count)), 16)) for count in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]
    assert all(len(each) == HASH_BYTES for each in hash_blocks(list(range(64)), 16))


def test_a_hash_covers_everything_before_it() -> None:
    rng = random.Random(1)
    tokens = [rng.randrange(1 << 17) for _ in range(160)]
    hashes = hash_blocks(tokens, 16)
    for position in range(0, 160, 7):
        changed = list(tokens)
        changed[position] += 1
        other = hash_blocks(changed, 16)
        block = position // 16
        assert other[:block] == hashes[:block]
        assert all(a != b for a, b in zip(other[block:], hashes[block:], strict=True))


def test_salts_and_adapters_share_nothing() -> None:
    tokens = list(range(16))
    variants = [("", ""), ("a", ""), ("", "a"), ("ab", ""), ("a", "b"), ("", "ab")]
    assert len({hash_blocks(tokens, 16, salt, adapter)[0] for salt, adapter in variants}) == len(variants)
    assert len({root_hash(*variant) for variant in variants}) == len(variants)


def defined_chain(parent: bytes, token_ids: Sequence[int], block_size: int, start: int) -> list[bytes]:
    """Return the hashes that `pack_hashes` defines."""
    hashes = []
    for first in range(start, len(token_ids) - block_size + 1, block_size):
        tokens = b"".join(token.to_bytes(4, "little") for token in token_ids[first : first + block_size])
        parent = blake2b(parent + tokens, digest_size=HASH_BYTES).digest()
        hashes.append(parent)
    return hashes


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("block_size", [1, 4, 16, 28, 29, 32, 60, 64, 128, 1000])
def test_chains_follow_the_definition(chain: Chain, block_size: int) -> None:
    rng = random.Random(block_size)
    for length in (0, 1, block_size - 1, block_size, 3 * block_size + 1, 100 * block_size):
        tokens = [rng.choice([0, 1, (1 << 32) - 1, rng.randrange(1 << 32)]) for _ in range(length)]
        parent, start = rng.randbytes(HASH_BYTES), rng.choice([0, 1, block_size, 2 * block_size, length + 5])
        expected = b"".join(defined_chain(parent, tokens, block_size, start))
        assert chain(parent, tokens, block_size, start) == expected
        assert chain(parent, tuple(tokens), block_size, start) == expected


@pytest.mark.parametrize("chain", CHAINS)
def test_numpy_integers_are_accepted_as_tokens(chain: Chain) -> None:
    tokens = np.arange(32, dtype=np.int64)
    assert chain(root_hash(), list(tokens), 16, 0) == chain(root_hash(), list(range(32)), 16, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("chain", CHAINS)
def test_invalid_tokens_raise(chain: Chain) -> None:
    for token in (-1, 1 << 32, 1 << 70):
        with pytest.raises(OverflowError):
            chain(root_hash(), [0, token], 2, 0)
    with pytest.raises(TypeError):
        chain(root_hash(), [0, "1"], 2, 0)  # type: ignore[list-item]


def test_hashes_are_extended_from_where_they_end() -> None:
    tokens = list(range(100))
    hashes = hash_blocks(tokens[:50], 16)
    extend_hashes(hashes, tokens, 16, root_hash())
    assert hashes == hash_blocks(tokens, 16) == split_hashes(pack_hashes(root_hash(), tokens, 16))


def test_a_truncated_hash_raises() -> None:
    with pytest.raises(ValueError, match="17 bytes"):
        split_hashes(b"x" * 17)
