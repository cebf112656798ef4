"""The envelope of a stored block."""

from baton.kvtransfer.store.envelope import HEADER_BYTES, is_intact, pack_header
from tests.unit.kvtransfer.store.store_rig import block_of, key_of


def test_any_change_of_a_bit_is_found() -> None:
    block = bytearray(block_of(0, 100))
    header = bytearray(pack_header("a", key_of(0), memoryview(block)))
    assert len(header) == HEADER_BYTES
    assert is_intact(header, "a", key_of(0), memoryview(block))
    for part in (header, block):
        for bit in range(8 * len(part)):
            part[bit // 8] ^= 1 << bit % 8
            assert not is_intact(header, "a", key_of(0), memoryview(block))
            part[bit // 8] ^= 1 << bit % 8


def test_it_belongs_to_one_namespace_key_and_length() -> None:
    block = block_of(0, 100)
    header = pack_header("a", key_of(0), block)
    assert not is_intact(header, "b", key_of(0), block)
    assert not is_intact(header, "a", key_of(1), block)
    assert not is_intact(header, "a", key_of(0), block[:-1])
    assert not is_intact(header[:-1], "a", key_of(0), block)


def test_the_format_is_fixed() -> None:
    """Stores hold blocks of earlier versions: with another layout, `MAGIC` must change."""
    header = pack_header("fingerprint", bytes(range(16)), memoryview(b"payload"))
    assert header.hex() == "4241544f4e4b56010700000000000000" + "990e8fa236c06888"
