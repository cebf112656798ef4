"""Store in a Redis server, or another one with its protocol.

baton:{NAMESPACE OF THE URL}:kv:NAMESPACE:KEY     a block: a header, then the payload (see `envelope`)

The server's `maxmemory` and `maxmemory-policy allkeys-lru` bound what it holds.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from baton.kvtransfer.errors import MAX_CHARS, first_line
from baton.kvtransfer.store.envelope import HEADER_BYTES, check_namespace, hex_name, is_intact, pack_header
from baton.kvtransfer.store.prefix_search import count_keys
from baton.kvtransfer.store.store import Key, StoreUnavailable, StoreUse
from baton.settings.redis_password import PasswordFile
from baton.settings.registry_url import RegistryUrl

CONNECT_TIMEOUT_S = 1.0
TIMEOUT_S = 2.0  # of each reading and writing of a socket
READ_BYTES = 1 << 20  # from a socket at once; with the client's default, a block takes twice as long
MAX_VALUE_BYTES = 512 << 20  # limit of Redis
BATCH = 1000  # keys that are deleted at once
GLOB = re.compile(r"[*?\[\]\\]")


class RedisStore:
    """Owns connections to one server; they open with the first command, and nothing is repeated after an error."""

    def __init__(self, url: RegistryUrl, namespace: str, ttl_s: float | None = None) -> None:
        """`ttl_s`: time to live of a block after its last use. Raises ValueError for an invalid namespace."""
        self._url = url
        self._namespace = check_namespace(namespace)
        self._prefix = f"{prefix_of(url)}{namespace}:"
        self._ttl_ms = None if ttl_s is None else max(1, int(ttl_s * 1000))
        self._client = cast(Any, redis_client(url))  # its types promise results or awaitables of them

    @property
    def name(self) -> str:
        """Name of the tier."""
        return "redis"

    def count(self, keys: Sequence[Key]) -> int:
        """Return how many keys, from the first on, seem to be stored; see `count_prefix`."""
        return count_keys(keys, self.has)

    def has(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each key whether it seems to be stored."""
        with translated_errors(self._url), self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.exists(self._name(key))
            return [bool(found) for found in pipeline.execute()]

    def read(self, key: Key, into: memoryview) -> bool:
        """Read a block into a buffer of exactly its size. A damaged one is deleted and counts as missing."""
        name, into = self._name(key), into.cast("B")
        size = HEADER_BYTES + len(into)
        with translated_errors(self._url), self._client.pipeline(transaction=False) as pipeline:
            pipeline.getrange(name, 0, size)  # one byte more than the block has, and never a longer reply
            if self._ttl_ms is not None:
                pipeline.pexpire(name, self._ttl_ms)
            value = pipeline.execute(raise_on_error=False)[0]
            if isinstance(value, Exception) and not _is_of_another_type(value):
                raise value
        if value == b"":
            return False
        if isinstance(value, bytes) and len(value) == size:
            into[:] = memoryview(value)[HEADER_BYTES:]
            if is_intact(value[:HEADER_BYTES], self._namespace, key, into):
                return True
        with translated_errors(self._url):
            self._client.delete(name)
        return False

    def write(self, key: Key, block: memoryview) -> int:
        """Store a block, unless it is there; return the number of bytes that were written."""
        name, block = self._name(key), block.cast("B")
        size = HEADER_BYTES + len(block)
        if size > MAX_VALUE_BYTES:
            raise StoreUnavailable(f"a block of {size} bytes is larger than the {MAX_VALUE_BYTES} that Redis stores")
        with translated_errors(self._url):
            if self._client.exists(name):
                return 0
            value = b"".join((pack_header(self._namespace, key, block), block))
            return size if self._client.set(name, value, px=self._ttl_ms, nx=True) else 0

    def use(self) -> StoreUse:
        """Return zeros: the server does not know what this namespace has."""
        return StoreUse(num_blocks=0, num_bytes=0, capacity_bytes=0)

    def clear(self) -> int:
        """Delete all blocks of the namespace, and return their number."""
        num_deleted, names = 0, list[bytes]()
        pattern = GLOB.sub(r"\\\g<0>", self._prefix) + "*"
        with translated_errors(self._url):
            for name in self._client.scan_iter(match=pattern, count=BATCH):
                names.append(name)
                if len(names) == BATCH:
                    num_deleted += self._client.unlink(*names)
                    names.clear()
            return num_deleted + (self._client.unlink(*names) if names else 0)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _name(self, key: Key) -> str:
        return self._prefix + hex_name(key)


def prefix_of(url: RegistryUrl) -> str:
    """Return what the names of all blocks begin with."""
    return f"baton:{url.namespace}:kv:"


@contextmanager
def translated_errors(url: RegistryUrl) -> Iterator[None]:
    """Raise the client's errors as StoreUnavailable."""
    try:
        yield
    except (RedisError, OSError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"[:MAX_CHARS]
        raise StoreUnavailable(f"{url}: {reason}") from error


def redis_client(url: RegistryUrl) -> Redis:
    """Return a client of a server, which connects with the first command."""
    options: dict[str, Any] = {"username": url.username, "password": url.password}
    if url.password_file is not None:
        options = {"credential_provider": PasswordFile(url.password_file, url.username)}
    if url.tls:
        options["ssl"] = True
        options |= {name: value for name, value in url.options.items() if name.startswith("ssl_")}
        if "ssl_check_hostname" in options:
            options["ssl_check_hostname"] = options["ssl_check_hostname"] == "true"
    (host, port), *_ = url.hosts
    return Redis(
        host=host,
        port=port,
        db=url.db,
        protocol=2,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=TIMEOUT_S,
        socket_read_size=READ_BYTES,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        **options,
    )


def _is_of_another_type(error: Exception) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")
