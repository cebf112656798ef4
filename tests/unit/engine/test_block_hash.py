"""Block hashes are chained, salted, and the same in every process."""

import random

from engine.block_hash import HASH_BYTES, hash_blocks, root_hash

KNOWN = [
    "8e209acee69628ae3644e75ca0dff2b4",
    "1e50952d3dabf3b11e1d15bd0e0f2acd",
]


def test_known_value() -> None:
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
