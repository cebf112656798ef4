"""Addresses of named processes, in a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from baton.membership.registry.base import NamedAddress, PlaceTaken, RegistryLost
from baton.membership.registry.factory import open_address
from baton.membership.rendezvous.rendezvous_address import (
    FixedAddress,
    RegisteredAddress,
    RendezvousUnknown,
    rendezvous_address,
)
from baton.settings.names import registered_name
from baton.settings.values import OptionError
from tests.redis_server import HOST, RedisServer, redis_server

KIND, NAME = "rendezvous", "pools"
KEY = f"baton:{{default}}:{KIND}:{NAME}"
FIRST, SECOND = "10.0.0.4:7300", "10.0.0.5:7300"
DEADLINE_S = 60.0


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """Yield a Redis server without a password."""
    async with redis_server(tmp_path) as server:
        yield server


@asynccontextmanager
async def entry(url: str, name: str = NAME) -> AsyncIterator[NamedAddress]:
    """Open the address of a name."""
    opened = open_address(url, KIND, name)
    try:
        yield opened
    finally:
        await opened.close()


async def wait_found(seeker: NamedAddress, address: str | None) -> None:
    """Return once this address is found."""
    async with asyncio.timeout(DEADLINE_S):
        while await seeker.find() != address:
            await asyncio.sleep(0.01)


async def stop(keeping: asyncio.Task[None]) -> None:
    """End a task that must still run."""
    assert not keeping.done(), keeping
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_the_latest_process_of_a_name_is_found_and_the_earlier_one_ends(server: RedisServer) -> None:
    async with entry(server.url) as seeker, entry(server.url) as first, entry(server.url) as second:
        assert await seeker.find() is None
        before = asyncio.create_task(first.keep(FIRST, 1.0))
        await wait_found(seeker, FIRST)
        keeping = asyncio.create_task(second.keep(SECOND, 1.0))
        with pytest.raises(PlaceTaken, match=f"{NAME} at redis.* is {SECOND} now"):
            await asyncio.wait_for(before, DEADLINE_S)
        await first.withdraw()  # must not withdraw the other's address
        assert await seeker.find() == SECOND
        await stop(keeping)
        await second.withdraw()
        assert await seeker.find() is None


async def test_names_are_independent(server: RedisServer) -> None:
    async with entry(server.url) as one, entry(server.url, "other") as other:
        keeping = [asyncio.create_task(one.keep(FIRST, 1.0)), asyncio.create_task(other.keep(SECOND, 1.0))]
        await wait_found(one, FIRST)
        await wait_found(other, SECOND)
        for task in keeping:
            await stop(task)


async def test_an_address_is_renewed_while_kept_and_expires_afterwards(server: RedisServer) -> None:
    async with entry(server.url) as seeker, entry(server.url) as kept:
        keeping = asyncio.create_task(kept.keep(FIRST, 1.0))
        await wait_found(seeker, FIRST)
        clock = asyncio.get_running_loop().time
        until_s = clock() + 1.5
        while clock() < until_s:
            assert await seeker.find() == FIRST
            await asyncio.sleep(0.05)
        await stop(keeping)
        await wait_found(seeker, None)


async def test_an_address_is_restored_in_a_redis_that_returns_empty(server: RedisServer) -> None:
    async with entry(server.url) as seeker, entry(server.url) as kept:
        keeping = asyncio.create_task(kept.keep(FIRST, 1.0))
        await wait_found(seeker, FIRST)
        await server.kill()
        with pytest.raises(RegistryLost):
            await seeker.find()
        await asyncio.sleep(0.5)  # a renewal fails
        assert not keeping.done()
        await server.start()
        await wait_found(seeker, FIRST)
        await stop(keeping)


async def test_an_address_is_registered_once_redis_responds(server: RedisServer) -> None:
    await server.kill()
    async with entry(server.url) as seeker, entry(server.url) as kept:
        keeping = asyncio.create_task(kept.keep(FIRST, 1.0))
        await asyncio.sleep(0.2)
        await server.start()
        await wait_found(seeker, FIRST)
        await stop(keeping)
        await server.kill()
        await kept.withdraw()  # does nothing: the address expires


async def test_an_invalid_value_is_no_address(server: RedisServer) -> None:
    async with Redis(host=HOST, port=server.port) as redis, entry(server.url) as seeker:
        for text in ("no JSON", "[]", '{"address": 7}', "{}"):
            await redis.set(KEY, text)
            assert await seeker.find() is None


async def test_errors_give_the_reason_for_a_missing_address(server: RedisServer) -> None:
    found = rendezvous_address(f"registry/{NAME}", server.url)
    assert isinstance(found, RegisteredAddress)
    with pytest.raises(RendezvousUnknown, match=f"there is no rendezvous {NAME} at redis://"):
        await found.find()
    await server.kill()
    with pytest.raises(RendezvousUnknown, match="cannot look up rendezvous"):
        await found.find()
    await found.close()


def test_the_option_is_a_registered_name_or_an_address() -> None:
    assert [registered_name(each) for each in (None, "registry", "registry/a-b", "host:7300", "registry:7300")] == [
        *("default", "default", "a-b"),
        *(None, None),
    ]
    assert isinstance(rendezvous_address("host:7300", None), FixedAddress)
    for wrong in ("registry/", "registry/a b"):
        with pytest.raises(OptionError, match="the name after `registry/` must be"):
            registered_name(wrong)
    with pytest.raises(OptionError, match="without a registry it must be the host:port"):
        rendezvous_address(None, None)
