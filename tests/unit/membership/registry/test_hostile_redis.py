"""A program in the place of Redis, or one that floods a channel: the event loop of a router keeps running."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis

from baton.membership.registry.redis_client import (
    MAX_REPLY_PARTS,
    PARTS_AT_ONCE,
    RedisConnections,
    ReplyTooLong,
    done,
)
from baton.membership.registry.redis_store import ANNOUNCEMENTS_AT_ONCE, MAX_ANNOUNCEMENTS, RedisStore
from baton.settings.registry_url import parse_registry_url
from tests.redis_server import HOST, redis_server

SETUP = (b"CLIENT", b"SELECT", b"AUTH", b"PING")


@contextmanager
def hostile_redis(begin: bytes, more: bytes) -> Iterator[int]:
    """Yield the port of a server that responds to each command with `begin` and then `more` without end.

    It has threads of its own, so that it does not wait for the event loop under test.
    """
    listener = socket.create_server((HOST, 0))
    threads: list[threading.Thread] = []

    def respond(client: socket.socket) -> None:
        with client, suppress(OSError):
            while data := client.recv(1 << 16):
                if any(word in data.upper() for word in SETUP):
                    client.sendall(b"+OK\r\n" * data.count(b"*"))
                    continue
                client.sendall(begin)
                while True:
                    client.sendall(more)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=respond, args=(client,)))
                threads[-1].start()

    threads.append(threading.Thread(target=accept))
    threads[0].start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for each in threads:
            each.join()


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def end(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize("part", [b":1\r\n", b"$-1\r\n", b"*0\r\n", b"$1\r\nx\r\n"])
async def test_a_reply_without_end_is_given_up_and_read_in_turns(part: bytes) -> None:
    with hostile_redis(b"*1000000000\r\n", part * 100_000) as port:
        connections = RedisConnections(parse_registry_url(f"redis://{HOST}:{port}/0"))
        turns = Turns()
        with pytest.raises(ReplyTooLong, match="parts"):
            await done(connections.client.exists("key"))
        turns.end()
        await connections.close()
    assert turns.count >= MAX_REPLY_PARTS // PARTS_AT_ONCE


async def test_long_lines_count_as_bytes_of_a_reply() -> None:
    with hostile_redis(b"*60000\r\n", b"+" + b"a" * 60_000 + b"\r\n") as port:
        connections = RedisConnections(parse_registry_url(f"redis://{HOST}:{port}/0"))
        with pytest.raises(ReplyTooLong, match="bytes"):
            await done(connections.client.exists("key"))
        await connections.close()


async def test_a_long_reply_of_a_sentinel_is_not_read() -> None:
    with hostile_redis(b"*1\r\n$3000000000\r\n", b"a" * (1 << 20)) as port:
        connections = RedisConnections(parse_registry_url(f"redis+sentinel://{HOST}:{port}/main"))
        with pytest.raises(ReplyTooLong, match="bytes"):
            await done(connections.client.exists("key"))
        await connections.close()


async def test_a_flood_of_announcements_is_read_in_turns(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server:
        store = RedisStore(parse_registry_url(server.url))
        async with store.changes() as changes, Redis(host=HOST, port=server.port) as client:
            pipeline = client.pipeline(transaction=False)
            for _ in range(2 * MAX_ANNOUNCEMENTS):
                pipeline.publish("baton:{default}:changes", b"x")
            await pipeline.execute()
            turns = Turns()
            await changes.wait(10.0)
            turns.end()
            assert turns.count >= MAX_ANNOUNCEMENTS // ANNOUNCEMENTS_AT_ONCE
            await changes.wait(10.0)
            with pytest.raises(TimeoutError):  # both calls have taken all of them
                async with asyncio.timeout(0.5):
                    await changes.wait(10.0)
        await store.close()
