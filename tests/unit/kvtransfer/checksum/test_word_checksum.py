import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.checksum.block_checksum import WORDS, XXH3, UnitChecksums, block_checksums, kind_for
from baton.kvtransfer.checksum.word_checksum import GOLDEN, MASK, multipliers, word_checksums
from baton.kvtransfer.errors import PeerRefused
from baton.kvtransfer.local_pool import LocalPool

NUM_WORDS = 2048


def splitmix64(index: int) -> int:
    """Return number `index` of the published generator, computed with Python integers."""
    z = (index + 1) * GOLDEN & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def by_definition(words: Sequence[int]) -> int:
    """Compute the checksum from its definition, without torch."""
    total = 0
    for index, word in enumerate(words):
        mixed = (word & MASK) * 0xD6E8FEB86659FD93 & MASK
        total += (mixed ^ mixed >> 32) * (splitmix64(index) | 1)
    total = total + len(words) * 0xC2B2AE3D27D4EB4F & MASK
    total = (total ^ total >> 33) * 0xFF51AFD7ED558CCD & MASK
    total = (total ^ total >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return total ^ total >> 33


def random_words(*shape: int) -> Tensor:
    return torch.randint(-(1 << 63), (1 << 63) - 1, shape, generator=torch.Generator().manual_seed(1))


def checksums(words: Tensor) -> list[int]:
    return word_checksums(words.view(torch.uint8), list(range(len(words))))


def test_checksums_match_the_definition() -> None:
    words = random_words(7, 300)
    words[1] = 0
    words[2] = -1
    assert word_checksums(words.view(torch.uint8), [3, 1, 2, 3, 0]) == [
        by_definition(words[unit].tolist()) for unit in (3, 1, 2, 3, 0)
    ]
    assert splitmix64(0) == 0xE220A8397B1DCDAF  # the generator's first number from seed 0, as published
    assert word_checksums(words.view(torch.uint8), []) == []


def test_every_changed_word_is_detected() -> None:
    words = random_words(NUM_WORDS)
    (before,) = checksums(words[None])
    for flipped in (1, 1 << 31, 1 << 32, -(1 << 63), -1):
        changed = words.repeat(NUM_WORDS, 1)
        changed.diagonal().bitwise_xor_(flipped)
        found = checksums(changed)
        assert before not in found
        assert len(set(found)) == NUM_WORDS


def test_swapped_words_are_detected_even_if_only_their_top_bits_differ() -> None:
    words = random_words(NUM_WORDS)
    words[1::2] = words[0::2] ^ -(1 << 63)
    (before,) = checksums(words[None])
    swapped = words.repeat(NUM_WORDS // 2, 1)
    for pair, row in enumerate(swapped):
        row[2 * pair], row[2 * pair + 1] = words[2 * pair + 1], words[2 * pair]
    far = words[None].clone()
    far[0, 0], far[0, -1] = words[-1], words[0]
    found = checksums(torch.cat((swapped, far)))
    assert before not in found
    assert len(set(found)) == len(found)


def test_shifted_torn_and_shortened_units_are_detected() -> None:
    words, other = random_words(2, NUM_WORDS)
    (before,) = checksums(words[None])
    shifted = torch.stack([words.roll(shift) for shift in range(1, 64)])
    torn = torch.stack([torch.cat((words[:cut], other[cut:])) for cut in range(1, NUM_WORDS, 64)])
    found = checksums(torch.cat((shifted, torn)))
    assert before not in found
    assert len(set(found)) == len(found)
    ends = torch.zeros(1, 64, dtype=torch.int64)
    assert len({checksums(ends[:, :count].contiguous())[0] for count in range(1, 65)}) == 64


def test_units_of_partial_words_are_padded_with_zeros() -> None:
    rows = random_words(4, 5).view(torch.uint8)[:, :37].contiguous()
    padded = torch.nn.functional.pad(rows, (0, 3)).contiguous()
    assert word_checksums(rows, [2, 0]) == word_checksums(padded, [2, 0])
    assert word_checksums(rows, [2, 0]) != word_checksums(rows, [0, 2])


def test_many_large_units_are_summed_in_steps() -> None:
    words = random_words(40, 32768)  # 10 MiB: several steps on a CPU
    assert checksums(words) == [checksums(words[unit : unit + 1])[0] for unit in range(40)]
    assert torch.equal(multipliers(9, words.device), multipliers(32768, words.device)[:9])


def test_the_kind_is_chosen_by_the_peer() -> None:
    pool = random_words(6, 64)
    assert LocalPool.of(pool, PoolIdentity("a", "b")).describe({"tcp": b""}).checksum == XXH3 == kind_for(pool)
    assert UnitChecksums(pool, 512, XXH3).of([4, 2]) == block_checksums(pool, [4, 2])
    assert UnitChecksums(pool, 256, WORDS).of([9, 4]) == [
        by_definition(pool[4, 32:].tolist()),
        by_definition(pool[2, :32].tolist()),
    ]
    with pytest.raises(PeerRefused, match="'crc32', known are xxh3 and words"):
        UnitChecksums(pool, 512, "crc32")
    assert kind_for(pool.to("meta")) == WORDS
    with pytest.raises(PeerRefused, match="xxh3, which a pool on meta does not support"):
        UnitChecksums(pool.to("meta"), 512, XXH3)


IN_TRITON = """
import torch
from baton.kvtransfer.checksum.word_checksum import sum_words_in_torch
from baton.kvtransfer.checksum.word_sums_triton import WORDS_A_PROGRAM, sum_words

for num_words in (1, 7, 1024, WORDS_A_PROGRAM, WORDS_A_PROGRAM + 1, 2 * WORDS_A_PROGRAM + 4711):
    words = torch.randint(-(1 << 63), (1 << 63) - 1, (5, num_words))
    units = torch.tensor([3, 0, 3, 4])
    assert torch.equal(sum_words(words, units), sum_words_in_torch(words, units)), num_words
print("equal")
"""


@pytest.mark.slow
def test_the_triton_kernel_matches_torch() -> None:
    """Run Triton's interpreter in a subprocess, since it must be selected before Triton is imported."""
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_TRITON],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "equal\n", run.stderr
