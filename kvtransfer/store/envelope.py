"""Envelope of a stored block: a header with a checksum in front of the payload, the same in every store.

byte 0     magic and format version
byte 8     number of bytes of the payload, little-endian
byte 16    xxh3-64 of the payload

The checksum's seed is a hash of the namespace and the key, so a block that was moved under another key fails too. It
detects torn and mixed-up blocks, but not a malicious writer; see `sealed`.
"""

import re
import struct

from xxhash import xxh3_64, xxh3_64_intdigest

from baton.kvtransfer.store.store import Key

MAGIC = b"BATONKV\x01"
HEADER = struct.Struct("<8sQQ")
HEADER_BYTES = HEADER.size
KEY_BYTES = 16
NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)


def pack_header(namespace: str, key: Key, payload: memoryview) -> bytes:
    """Return the header of a block. The checksum does not copy, and releases the GIL."""
    return HEADER.pack(MAGIC, payload.nbytes, xxh3_64_intdigest(payload, seed=_seed(namespace, key)))


def is_intact(header: bytes | bytearray, namespace: str, key: Key, payload: memoryview) -> bool:
    """Return whether a payload that was read is the one that was stored with this header under this key."""
    return bytes(header) == pack_header(namespace, key, payload)


class PayloadCheck:
    """The check of a payload that arrives in parts: hashed at once, they are still in the processor's cache."""

    def __init__(self, namespace: str, key: Key) -> None:
        self._hash = xxh3_64(seed=_seed(namespace, key))
        self._num_bytes = 0

    def add(self, part: memoryview) -> None:
        """Add the next part. The checksum does not copy, and releases the GIL."""
        self._hash.update(part)
        self._num_bytes += part.nbytes

    def is_intact(self, header: bytes | bytearray) -> bool:
        """Return whether the parts are the payload that was stored with this header."""
        return bytes(header) == HEADER.pack(MAGIC, self._num_bytes, self._hash.intdigest())


def check_namespace(namespace: str) -> str:
    """Return the namespace. Raises ValueError if it cannot be a file name in every store."""
    if not NAMESPACE.fullmatch(namespace):
        raise ValueError(
            f"the namespace {namespace[:200]!r} must have 1 to 128 letters, digits or . _ -, and not begin with . or -"
        )
    return namespace


def hex_name(key: Key) -> str:
    """Return the name of a block, 32 hex digits. Raises ValueError for a key of another length than 16 bytes."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key of a block has {KEY_BYTES} bytes, not {len(key)}")
    return key.hex()


def _seed(namespace: str, key: Key) -> int:
    return xxh3_64_intdigest(namespace.encode() + b"\0" + key)
