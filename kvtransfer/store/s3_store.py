"""Store in a bucket of Amazon S3, or of another service with its protocol.

PREFIX/NAMESPACE/KEY     a block: a header, then the payload (see `envelope`)

The bucket's lifecycle rules bound what it holds, and delete what has expired.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from baton.kvtransfer.errors import MAX_CHARS, first_line
from baton.kvtransfer.store.bucket_address import BucketAddress
from baton.kvtransfer.store.envelope import HEADER_BYTES, check_namespace, hex_name, is_intact, pack_header
from baton.kvtransfer.store.prefix_search import PROBES, count_keys
from baton.kvtransfer.store.store import Key, StoreUnavailable, StoreUse

CONNECT_TIMEOUT = timedelta(seconds=2)
TIMEOUT = timedelta(seconds=5)  # of a request
RETRY_TIMEOUT = timedelta(seconds=5)
MAX_RETRIES = 1
BATCH = 1000  # objects that are deleted at once
ROLE_PATH = "/latest/api/token"  # of Amazon's metadata service, which reports the machine's role


class S3Store:
    """Owns connections to a bucket.

    Credentials are those of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), or of the
    pod's or the machine's role.
    """

    def __init__(self, address: BucketAddress, namespace: str, ttl_s: float | None = None) -> None:
        """Store the settings. `ttl_s`: time to live of a block after it was stored, by the clocks of both sides.

        Raises ValueError for an invalid namespace, StoreUnavailable for an invalid endpoint.
        """
        self._address = address
        self._ttl = None if ttl_s is None else timedelta(seconds=ttl_s)
        self._namespace = check_namespace(namespace)
        self._threads = ThreadPoolExecutor(PROBES, thread_name_prefix="kv-s3")
        with translated_errors(address):
            self._bucket = open_bucket(address, "/".join(part for part in (address.prefix, namespace) if part))

    @property
    def name(self) -> str:
        """Name of the tier."""
        return "s3"

    def count(self, keys: Sequence[Key]) -> int:
        """Return how many keys, from the first on, seem to be stored; see `count_prefix`."""
        return count_keys(keys, self.has)

    def has(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each key whether it seems to be stored."""
        return list(self._threads.map(self._has, map(hex_name, keys)))

    def read(self, key: Key, into: memoryview) -> bool:
        """Read a block into a buffer of exactly its size. A damaged or expired one is deleted and counts as missing."""
        name, into = hex_name(key), into.cast("B")
        with translated_errors(self._address):
            try:
                found = obstore.get(self._bucket, name)
            except FileNotFoundError:
                return False
            if found.meta["size"] == HEADER_BYTES + len(into) and not self._is_expired(found.meta["last_modified"]):
                content = memoryview(found.bytes())
                into[:] = content[HEADER_BYTES:]
                if is_intact(bytes(content[:HEADER_BYTES]), self._namespace, key, into):
                    return True
            obstore.delete(self._bucket, name)
        return False

    def write(self, key: Key, block: memoryview) -> int:
        """Store a block, unless it is there; return the number of bytes that were written."""
        name, block = hex_name(key), block.cast("B")
        if self._has(name):
            return 0
        content = b"".join((pack_header(self._namespace, key, block), block))
        with translated_errors(self._address):
            try:
                obstore.put(self._bucket, name, content, use_multipart=False)
            except FileNotFoundError as error:
                raise StoreUnavailable(f"{self._address}: there is no such bucket; create it") from error
        return len(content)

    def use(self) -> StoreUse:
        """Return zeros: a bucket is too slow to list."""
        return StoreUse(num_blocks=0, num_bytes=0, capacity_bytes=0)

    def clear(self) -> int:
        """Delete all blocks of the namespace, and return their number."""
        num_deleted = 0
        with translated_errors(self._address):
            for found in obstore.list(self._bucket, chunk_size=BATCH):
                obstore.delete(self._bucket, [each["path"] for each in found])
                num_deleted += len(found)
        return num_deleted

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _has(self, name: str) -> bool:
        with translated_errors(self._address):
            try:
                return not self._is_expired(obstore.head(self._bucket, name)["last_modified"])
            except FileNotFoundError:
                return False

    def _is_expired(self, stored_at: datetime) -> bool:
        return self._ttl is not None and datetime.now(UTC) - stored_at > self._ttl


def open_bucket(address: BucketAddress, prefix: str) -> Bucket:
    """Return a bucket's objects below a prefix; nothing is sent yet. Raises BaseError for an invalid endpoint."""
    return Bucket(
        address.bucket,
        prefix=prefix,
        endpoint=address.endpoint,
        region=address.region,
        client_options={
            "allow_http": (address.endpoint or "").startswith("http://"),
            "connect_timeout": CONNECT_TIMEOUT,
            "timeout": TIMEOUT,
        },
        retry_config={"max_retries": MAX_RETRIES, "retry_timeout": RETRY_TIMEOUT},
    )


@contextmanager
def translated_errors(address: BucketAddress) -> Iterator[None]:
    """Raise the client's errors as StoreUnavailable."""
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"[:MAX_CHARS]
        if ROLE_PATH in reason:
            reason = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
        raise StoreUnavailable(f"{address}: {reason}") from error
