"""All blocks in a Redis server; see `redis_store`."""

from collections.abc import Iterator
from typing import Any, cast

from baton.kvtransfer.store.block_source import intact_payload
from baton.kvtransfer.store.envelope import NAMESPACE
from baton.kvtransfer.store.eviction import BLOCK
from baton.kvtransfer.store.redis_store import BATCH, GLOB, prefix_of, redis_client, translated_errors
from baton.kvtransfer.store.store import Key
from baton.settings.registry_url import RegistryUrl


class RedisBlocks:
    """The blocks at a URL; a BlockSource. Looking for the namespaces scans all of the server's keys."""

    def __init__(self, url: RegistryUrl) -> None:
        self._url = url
        self._prefix = prefix_of(url)
        self._client = cast(Any, redis_client(url))  # its types promise results or awaitables of them

    def namespaces(self) -> list[str]:
        """Return the namespaces, in order."""
        found = {name.rpartition(":")[0] for name in self._names("")}
        return sorted(name for name in found if NAMESPACE.fullmatch(name))

    def keys(self, namespace: str) -> Iterator[Key]:
        """Yield the keys of the blocks in a namespace."""
        for name in set(self._names(f"{namespace}:")):
            if BLOCK.fullmatch(key := name.rpartition(":")[2]):
                yield bytes.fromhex(key)

    def read(self, namespace: str, key: Key) -> bytes | None:
        """Return a block; None if it has expired meanwhile."""
        name = f"{self._prefix}{namespace}:{key.hex()}"
        with translated_errors(self._url):
            content: bytes | None = self._client.get(name)
        return None if content is None else intact_payload(content, namespace, key, f"{self._url}: {name}")

    def _names(self, beginning: str) -> Iterator[str]:
        """Yield the names behind the common prefix that begin like this; some perhaps twice."""
        pattern = GLOB.sub(r"\\\g<0>", self._prefix + beginning) + "*"
        with translated_errors(self._url):
            for name in self._client.scan_iter(match=pattern, count=BATCH):
                yield name.decode(errors="replace").removeprefix(self._prefix)
