"""Encrypted blocks, and the file of their key."""

import os
from pathlib import Path

import pytest

from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.envelope import HEADER_BYTES, pack_header
from baton.kvtransfer.store.sealed import OVERHEAD_BYTES, SealedStore, read_key_file, sealed_namespace
from baton.settings.values import OptionError
from tests.unit.kvtransfer.store.store_rig import (
    BLOCK_BYTES,
    NAMESPACE,
    block_of,
    check_contract,
    key_of,
    path_of,
    read,
    write,
)

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
CAPACITY = 1 << 20


def open_sealed(root: Path, key: bytes = KEY, namespace: str = NAMESPACE) -> SealedStore:
    return SealedStore(DirectoryStore(root, namespace, CAPACITY), namespace, key)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_it_keeps_the_contract(root: Path) -> None:
    store = open_sealed(root)
    check_contract(store)
    assert store.name == "disk"
    assert store.use().num_blocks == 1  # the others were cleared
    store.close()


def test_the_stored_bytes_show_nothing_and_never_repeat(root: Path) -> None:
    store = open_sealed(root)
    write(store, 0)
    content = path_of(root, 0).read_bytes()
    assert len(content) == HEADER_BYTES + BLOCK_BYTES + OVERHEAD_BYTES
    assert not any(bytes(block_of(0)[start : start + 8]) in content for start in range(0, BLOCK_BYTES - 8, 8))
    path_of(root, 0).unlink()
    write(store, 0)
    again = path_of(root, 0).read_bytes()
    assert content[-BLOCK_BYTES:] != again[-BLOCK_BYTES:]


def test_a_block_that_is_there_is_not_encrypted_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_sealed(root)
    write(store, 0)
    monkeypatch.setattr(os, "urandom", None)
    assert store.write(key_of(0), block_of(0)) == 0


def forge(root: Path, number: int, payload: bytes, namespace: str = NAMESPACE) -> None:
    """Store bytes under a key, with the checksum that belongs to them."""
    path = path_of(root, number, namespace)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    (root / namespace).chmod(0o700)
    path.write_bytes(pack_header(namespace, key_of(number), memoryview(payload)) + payload)


def test_a_forged_or_swapped_block_is_a_miss(root: Path) -> None:
    store = open_sealed(root)
    write(store, 0, 1)
    payload = path_of(root, 0).read_bytes()[HEADER_BYTES:]
    forge(root, 0, payload)
    assert read(store, 0)
    forge(root, 1, payload)
    assert not read(store, 1)
    other = open_sealed(root, namespace="other")
    forge(root, 0, payload, "other")
    assert not read(other, 0)
    for place in (0, 12, BLOCK_BYTES + 12):  # the nonce, the block, the tag
        changed = bytearray(payload)
        changed[place] ^= 1
        forge(root, 0, bytes(changed))
        assert not read(store, 0)


def test_blocks_of_another_key_are_not_read_nor_found(root: Path) -> None:
    write(open_sealed(root), 0)
    assert not read(open_sealed(root, OTHER_KEY), 0)
    assert sealed_namespace(NAMESPACE, KEY) == f"{NAMESPACE}.f054cd39"
    assert sealed_namespace(NAMESPACE, KEY) != sealed_namespace(NAMESPACE, OTHER_KEY)


@pytest.mark.parametrize("content", [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n", b"\n" * 32])
def test_a_key_file_has_32_bytes_or_64_digits(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o640)
    assert read_key_file(path) == (KEY if content != b"\n" * 32 else content)


@pytest.mark.parametrize(
    "content", [b"", bytes(31), bytes(33), b"0" * 63, b"g" * 64, b"0" * 66, "é".encode() * 16 + b"0", bytes(5000)]
)
def test_another_content_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(
        OptionError, match=r"must have 32 bytes or 64 hex digits, as `openssl rand -hex 32` prints"
    ) as caught:
        read_key_file(path)
    assert "\n" not in str(caught.value)


def test_a_key_file_must_be_private_and_there(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o644)
    with pytest.raises(OptionError, match=r"other users can read the key file .* \(mode 644\): run chmod 600 on it"):
        read_key_file(path)
    with pytest.raises(OptionError, match=r"missing cannot be read: No such file or directory"):
        read_key_file(tmp_path / "missing")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OptionError, match="it is not a regular file"):
        read_key_file(tmp_path / "fifo")
