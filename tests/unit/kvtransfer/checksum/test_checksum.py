import pytest
import torch

from baton.kvtransfer.checksum.block_checksum import block_checksums

XXH3_64_OF_A = 0xE6C632B61E964E1F  # of the single byte "a"


def test_matches_the_published_vectors() -> None:
    pool = torch.tensor([[ord("a")], [ord("b")]], dtype=torch.uint8)
    assert block_checksums(pool, [0]) == [XXH3_64_OF_A]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_checksum_depends_on_every_byte_of_its_block_only(dtype: torch.dtype) -> None:
    pool = torch.zeros(4, 2, 3, 8, dtype=dtype)
    pool[:] = torch.arange(4).view(4, 1, 1, 1)
    before = block_checksums(pool, [0, 1, 2, 3])
    assert len(set(before)) == 4
    raw = pool.view(torch.uint8)
    for position in (0, raw[2].numel() - 1):
        raw[2].view(-1)[position] ^= 1
        after = block_checksums(pool, [0, 1, 2, 3])
        assert [a == b for a, b in zip(after, before, strict=True)] == [True, True, False, True]
        raw[2].view(-1)[position] ^= 1
    assert block_checksums(pool, [3, 3, 0]) == [before[3], before[3], before[0]]


def test_each_unit_has_its_own_checksum() -> None:
    pool = torch.arange(3 * 8).view(3, 8)
    halves = block_checksums(pool.view(6, 4), range(6))
    assert block_checksums(pool, [2, 0], 2) == [halves[4], halves[5], halves[0], halves[1]]
