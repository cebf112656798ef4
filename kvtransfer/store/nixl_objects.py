"""Store in a bucket by NIXL's OBJ plugin, which reads and writes over RDMA where the service can.

Objects have the names and contents of those of `s3_store`, so both find the same blocks.
"""

from collections.abc import Mapping, Sequence

from baton.kvtransfer.nixl.storage import NixlStorage, StoragePlace
from baton.kvtransfer.store.envelope import HEADER_BYTES, check_namespace, hex_name, is_intact, pack_header
from baton.kvtransfer.store.nixl_files import translated_failures
from baton.kvtransfer.store.prefix_search import count_keys
from baton.kvtransfer.store.store import Key, StoreUnavailable, StoreUse


class NixlObjectStore:
    """Owns the plugin's connections to a bucket. Its lifecycle rules bound what it holds, and delete what is old.

    Credentials are those of the environment, or of the pod's or the machine's role.
    """

    def __init__(self, prefix: str, namespace: str, parameters: Mapping[str, str]) -> None:
        """Raise StoreUnavailable if the plugin does not work here, ValueError for an invalid namespace."""
        self._namespace = check_namespace(namespace)
        self._folder = "/".join(part for part in (prefix, namespace) if part)
        with translated_failures():
            self._storage = NixlStorage("OBJ", parameters)

    @property
    def name(self) -> str:
        """Name of the tier."""
        return "nixl-obj"

    def count(self, keys: Sequence[Key]) -> int:
        """Return how many keys, from the first on, seem to be stored; see `count_prefix`."""
        return count_keys(keys, self.has)

    def has(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each key whether it seems to be stored."""
        names = [self._object(key) for key in keys]
        with translated_failures():
            return self._storage.have_objects(names) if names else []

    def read(self, key: Key, into: memoryview) -> bool:
        """Read a block into a buffer of exactly its size. A damaged one counts as missing."""
        into = into.cast("B")
        if not self.has([key])[0]:
            return False
        content = memoryview(bytearray(HEADER_BYTES + len(into)))
        with translated_failures():
            self._storage.copy("READ", content, StoragePlace("OBJ", name=self._object(key)))
        into[:] = content[HEADER_BYTES:]
        return is_intact(bytes(content[:HEADER_BYTES]), self._namespace, key, into)

    def write(self, key: Key, block: memoryview) -> int:
        """Store a block, unless it is there; return the number of bytes that were written."""
        if self.has([key])[0]:
            return 0
        block = block.cast("B")
        content = b"".join((pack_header(self._namespace, key, block), block))
        with translated_failures():
            self._storage.copy("WRITE", memoryview(content), StoragePlace("OBJ", name=self._object(key)))
        return len(content)

    def use(self) -> StoreUse:
        """Return zeros: a bucket is too slow to list."""
        return StoreUse(num_blocks=0, num_bytes=0, capacity_bytes=0)

    def clear(self) -> int:
        """Raise StoreUnavailable: NIXL deletes no objects."""
        raise StoreUnavailable("NIXL deletes no objects; clear the same bucket as a store at s3://")

    def close(self) -> None:
        """Destroy NIXL's agents."""
        self._storage.close()

    def _object(self, key: Key) -> str:
        return f"{self._folder}/{hex_name(key)}"
