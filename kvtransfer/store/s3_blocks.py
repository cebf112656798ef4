"""All blocks in a bucket of S3; see `s3_store`."""

from collections.abc import Iterator

import obstore

from baton.kvtransfer.store.block_source import intact_payload
from baton.kvtransfer.store.bucket_address import BucketAddress
from baton.kvtransfer.store.envelope import NAMESPACE
from baton.kvtransfer.store.eviction import BLOCK
from baton.kvtransfer.store.s3_store import BATCH, open_bucket, translated_errors
from baton.kvtransfer.store.store import Key


class S3Blocks:
    """The blocks below a prefix of a bucket; a BlockSource."""

    def __init__(self, address: BucketAddress) -> None:
        """Raises StoreUnavailable for an invalid endpoint."""
        self._address = address
        with translated_errors(address):
            self._bucket = open_bucket(address, address.prefix)

    def namespaces(self) -> list[str]:
        """Return the namespaces, in order."""
        with translated_errors(self._address):
            found = obstore.list_with_delimiter(self._bucket)["common_prefixes"]
        names = (name.rstrip("/").rpartition("/")[2] for name in found)
        return sorted(name for name in names if NAMESPACE.fullmatch(name))

    def keys(self, namespace: str) -> Iterator[Key]:
        """Yield the keys of the blocks in a namespace."""
        with translated_errors(self._address):
            for found in obstore.list(self._bucket, prefix=namespace, chunk_size=BATCH):
                for name in (each["path"].rpartition("/")[2] for each in found):
                    if BLOCK.fullmatch(name):
                        yield bytes.fromhex(name)

    def read(self, namespace: str, key: Key) -> bytes | None:
        """Return a block; None if it was deleted meanwhile."""
        name = f"{namespace}/{key.hex()}"
        with translated_errors(self._address):
            try:
                content = bytes(obstore.get(self._bucket, name).bytes())
            except FileNotFoundError:
                return None
        return intact_payload(content, namespace, key, f"{self._address}: {name}")
