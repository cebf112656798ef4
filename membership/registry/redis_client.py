"""Clients of Redis: one server, behind Sentinels, or a cluster.

Clients never retry by themselves. Their users report that Redis is lost and retry after a pause.

Replies are bytes. A reply that is longer than Baton's own can be, or has more parts, is not read: any program that can
write to Redis, or takes its place, could otherwise stop the event loop of every router.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any

from redis._parsers import _AsyncRESP2Parser
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException, RedisError

from baton.settings.redis_password import PasswordFile
from baton.settings.registry_url import RegistryUrl

TIMEOUT_S = 2.0  # to connect, and per command
MAX_REPLY_BYTES = 1 << 23  # twice the longest text that Baton stores
MAX_REPLY_PARTS = 1 << 16  # five times those of COMMAND, which a cluster's client reads
PARTS_AT_ONCE = 256  # of a reply, before other tasks of the event loop run
CLUSTER_RETRIES = 1  # a cluster's client needs one to ask for the cluster's nodes anew

# Whatever can come of a Redis that is not there, not willing, or someone else's.
REDIS_ERRORS: tuple[type[Exception], ...] = (RedisError, RedisClusterException, OSError, TimeoutError)

Client = Redis | RedisCluster


class ReplyTooLong(RedisError):
    """A reply of Redis is longer than any that Baton's own keys can have. It is unread, and its connection closed."""


class BoundedParser(_AsyncRESP2Parser):
    """Parser that raises ReplyTooLong instead of reading a reply of more than MAX_REPLY_BYTES or MAX_REPLY_PARTS."""

    async def read_response(self, disable_decoding: bool = False) -> Any:
        """Return the next reply."""
        self._num_bytes = 0  # of the reply so far
        self._num_parts = 0  # arrays, strings and numbers so far
        return await super().read_response(disable_decoding)

    async def _readline(self) -> bytes:
        self._num_parts += 1
        if self._num_parts > MAX_REPLY_PARTS:
            raise ReplyTooLong(f"a reply of Redis has more than {MAX_REPLY_PARTS} parts")
        if self._num_parts % PARTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # what is buffered is read without a pause
        line = await super()._readline()
        self._count(len(line))
        return line

    async def _read(self, length: int) -> bytes:
        self._count(length)
        return await super()._read(length)

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_REPLY_BYTES:
            raise ReplyTooLong(f"a reply of Redis is longer than {MAX_REPLY_BYTES} bytes")


class RedisConnections:
    """Owns the client for a URL, and the Sentinels that it asks."""

    def __init__(self, url: RegistryUrl) -> None:
        """Store the settings; connections open with the first command."""
        self._sentinel: Sentinel | None = None
        common = _connection_options(url)
        login: dict[str, Any] = {"username": url.username, "password": url.password}
        if url.password_file is not None:
            login = {"credential_provider": PasswordFile(url.password_file, url.username)}
        self.client: Client
        if url.kind == "cluster":
            nodes = [ClusterNode(host, port) for host, port in url.hosts]
            retry = Retry(NoBackoff(), CLUSTER_RETRIES)
            self.client = RedisCluster(startup_nodes=nodes, **{**common, **login, "retry": retry})
            self.client.nodes_manager.connection_kwargs["parser_class"] = BoundedParser  # of nodes found later
            for node in self.client.startup_nodes:
                node.connection_kwargs["parser_class"] = BoundedParser
        elif url.kind == "sentinel":
            sentinel_login = {name: url.options.get(f"sentinel_{name}") for name in ("username", "password")}
            self._sentinel = Sentinel(list(url.hosts), sentinel_kwargs={**common, **sentinel_login})  # type: ignore[no-untyped-call]  # redis's own lack
            for sentinel in self._sentinel.sentinels:
                sentinel.connection_pool.connection_kwargs["parser_class"] = BoundedParser
            master = self._sentinel.master_for(url.service, db=url.db, **common, **login)
            assert isinstance(master, Redis)
            self.client = master
        else:
            (host, port), *_ = url.hosts
            self.client = Redis(host=host, port=port, db=url.db, **common, **login)
        if isinstance(self.client, Redis):
            self.client.connection_pool.connection_kwargs["parser_class"] = BoundedParser

    async def close(self) -> None:
        """Close all connections."""
        await self.client.aclose()
        if self._sentinel is not None:
            await self._sentinel.aclose()


def _connection_options(url: RegistryUrl) -> dict[str, Any]:
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
    }
    if url.tls:
        options["ssl"] = True
        options |= {name: value for name, value in url.options.items() if name.startswith("ssl_")}
        if "ssl_check_hostname" in options:
            options["ssl_check_hostname"] = options["ssl_check_hostname"] == "true"
    return options


async def done(command: Awaitable[Any]) -> Any:
    """Return a command's result or raise one of REDIS_ERRORS. A cancellation of the caller always takes precedence.

    Works around three behaviours of the client:

    - It waits with `asyncio.wait_for`, which up to Python 3.11 loses a cancellation that arrives just as the awaited
      result is ready. The caller would then run forever.
    - A task that waits for the end of a stream is cancelled if another task was cancelled there. The caller would end.
    - Some errors are not REDIS_ERRORS: the RuntimeError with which uvloop reports a connection lost before a command
      was written, and what the client raises for replies that it cannot parse.
    """
    task = asyncio.current_task()
    assert task is not None
    num_before = task.cancelling()
    try:
        return await command
    except asyncio.CancelledError as error:
        if task.cancelling() > num_before:
            raise
        raise ConnectionError("the client gave the command up") from error
    except REDIS_ERRORS:
        raise
    except Exception as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        if task.cancelling() > num_before:
            raise asyncio.CancelledError
