"""Blocks that only holders of a key can read or forge, in any store: AES-256-GCM (NIST SP 800-38D).

A stored block is a random nonce of 12 bytes, the encrypted block and its tag of 16 bytes. Each block has a key of its
own, a hash of the file's key, the namespace and the block's key, so that nonces do not repeat however many blocks are
written. Namespace and block key are also authenticated: blocks cannot be swapped.
"""

import os
import stat
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from baton.kvtransfer.store.envelope import check_namespace, hex_name
from baton.kvtransfer.store.store import Key, KVStore, StoreUse
from baton.settings.regular_file import open_regular
from baton.settings.values import OptionError

KEY_BYTES = 32
NONCE_BYTES, TAG_BYTES = 12, 16
OVERHEAD_BYTES = NONCE_BYTES + TAG_BYTES
MAX_FILE_BYTES = 1024


class SealedStore:
    """Encrypts the blocks of another store, which it closes."""

    def __init__(self, store: KVStore, namespace: str, key: bytes) -> None:
        """`key`: 32 bytes. `namespace`: that of `store`, which `sealed_namespace` returns."""
        self._store = store
        self._namespace = check_namespace(namespace)
        self._key = key

    @property
    def name(self) -> str:
        """Name of the tier."""
        return self._store.name

    def count(self, keys: Sequence[Key]) -> int:
        """Return how many keys, from the first on, seem to be stored."""
        return self._store.count(keys)

    def has(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each key whether it seems to be stored."""
        return self._store.has(keys)

    def read(self, key: Key, into: memoryview) -> bool:
        """Read and decrypt a block into a buffer of its size; False if it is missing, damaged or forged."""
        into = into.cast("B")
        sealed = memoryview(bytearray(len(into) + OVERHEAD_BYTES))
        if not self._store.read(key, sealed):
            return False
        try:
            self._cipher(key).decrypt_into(bytes(sealed[:NONCE_BYTES]), sealed[NONCE_BYTES:], self._identity(key), into)
        except InvalidTag:
            return False
        return True

    def write(self, key: Key, block: memoryview) -> int:
        """Encrypt and store a block, unless it is there; return the number of bytes that were written."""
        if self._store.count([key]):
            return 0
        block = block.cast("B")
        nonce = os.urandom(NONCE_BYTES)
        sealed = memoryview(bytearray(len(block) + OVERHEAD_BYTES))
        sealed[:NONCE_BYTES] = nonce
        self._cipher(key).encrypt_into(nonce, block, self._identity(key), sealed[NONCE_BYTES:])
        return self._store.write(key, sealed)

    def use(self) -> StoreUse:
        """Return what the store holds."""
        return self._store.use()

    def clear(self) -> int:
        """Delete all blocks of the namespace, and return their number."""
        return self._store.clear()

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _cipher(self, key: Key) -> AESGCM:
        block_key = blake2b(self._identity(key), key=self._key, digest_size=KEY_BYTES, person=b"baton-kv-block")
        return AESGCM(block_key.digest())

    def _identity(self, key: Key) -> bytes:
        return f"{self._namespace}/{hex_name(key)}".encode()


def sealed_namespace(namespace: str, key: bytes) -> str:
    """Return the namespace for blocks that are encrypted with this key: those of another key must not be found."""
    return f"{namespace}.{blake2b(key=key, digest_size=4, person=b'baton-kv-space').hexdigest()}"


def read_key_file(path: str | Path) -> bytes:
    """Return the 32 bytes of a key. Raises OptionError if it cannot be read, or others can read it, too."""
    try:
        with open_regular(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise OptionError(f"the key file {path} cannot be read: {error.strerror}") from error
    if mode & stat.S_IROTH:
        raise OptionError(
            f"other users can read the key file {path} (mode {mode:o}): run chmod 600 on it, or set defaultMode: 0440 "
            "of the Kubernetes secret"
        )
    if len(content) == KEY_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise OptionError(f"the key file {path} must have 32 bytes or 64 hex digits, as `openssl rand -hex 32` prints")
    return key
