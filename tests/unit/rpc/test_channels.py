"""Channels to changing workers, with a real server on many addresses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from baton.rpc.peers import Channels
from baton.rpc.tls import MutualTls, Plaintext
from tests.unit.rpc.test_tls import request, serving, write

HealthWatch = grpc.aio.UnaryStreamCall[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]


@asynccontextmanager
async def workers() -> AsyncIterator[list[str]]:
    """Yield several addresses of one server, which a client takes for several workers."""
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), server)
    port = server.add_insecure_port("0.0.0.0:0")
    await server.start()
    try:
        yield [f"127.0.{index // 250}.{index % 250 + 1}:{port}" for index in range(600)]
    finally:
        await server.stop(None)


@pytest.fixture
async def channels(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Channels]:
    """Yield channels that check for unused ones on every `get`, without the grace of SOON_S."""
    monkeypatch.setattr("baton.rpc.peers.VERSION_INTERVAL_S", 0.0)
    monkeypatch.setattr("baton.rpc.peers.CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr("baton.rpc.peers.SOON_S", 0.0)
    channels = Channels()
    yield channels
    await channels.close()


def num_connections(port: str) -> int:
    """Return the number of this machine's established connections to a port."""
    hexadecimal = f"{int(port):04X}"
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    return sum(fields[2].endswith(f":{hexadecimal}") and fields[3] == "01" for fields in map(str.split, lines))


def watch(channel: grpc.aio.Channel) -> HealthWatch:
    """Begin a call that stays open."""
    return health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())


async def test_an_address_has_one_channel(channels: Channels) -> None:
    async with workers() as addresses:
        channel = channels.get(addresses[0])
        assert await request(channel) == health_pb2.HealthCheckResponse.SERVING
        assert channels.get(addresses[0]) is channel
        assert channels.get(addresses[1]) is not channel


async def test_the_number_of_idle_channels_is_bounded(channels: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.rpc.peers.MAX_CHANNELS", 20)
    async with workers() as addresses:
        first = channels.get(addresses[0])
        for address in addresses[:200]:
            await request(channels.get(address))
            await request(channels.get(addresses[0]))  # always in use, so never among the longest unused
        assert channels.get(addresses[0]) is first
        async with asyncio.timeout(20):
            while num_connections(addresses[0].partition(":")[2]) > 21:
                await asyncio.sleep(0.01)
        again = channels.get(addresses[1])  # closed earlier
        assert await request(again) == health_pb2.HealthCheckResponse.SERVING


async def test_an_unused_channel_is_closed(channels: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.rpc.peers.IDLE_S", 0.0)
    async with workers() as addresses:
        for address in addresses[:5]:
            await request(channels.get(address))
        async with asyncio.timeout(20):
            while num_connections(addresses[0].partition(":")[2]) > 1:
                await asyncio.sleep(0.01)
        await request(channels.get(addresses[0]))


async def test_no_open_call_is_closed(channels: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.rpc.peers.MAX_CHANNELS", 1)
    monkeypatch.setattr("baton.rpc.peers.IDLE_S", 0.0)
    async with workers() as addresses:
        busy = channels.get(addresses[0])
        watched, abandoned = watch(busy), watch(busy)
        for call in (watched, abandoned):
            await call.read()
        for address in addresses[1:50]:
            await request(channels.get(address))
        assert not watched.done()
        assert channels.get(addresses[0]) is busy
        abandoned.cancel()
        await request(channels.get(addresses[1]))
        assert channels.get(addresses[0]) is busy  # its other call is still open
        watched.cancel()
        await request(channels.get(addresses[1]))
        assert channels.get(addresses[0]) is not busy


async def test_a_channel_stays_open_until_its_call_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.rpc.peers.CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr("baton.rpc.peers.MAX_CHANNELS", 1)
    channels = Channels()
    async with workers() as addresses:
        got = [channels.get(address) for address in addresses[:50]]
        for channel in got:
            assert await request(channel) == health_pb2.HealthCheckResponse.SERVING
    await channels.close()


@pytest.mark.parametrize("ends", ["well", "cancelled", "refused"])
async def test_every_end_of_a_call_is_counted(channels: Channels, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    monkeypatch.setattr("baton.rpc.peers.IDLE_S", 0.0)
    async with workers() as addresses:
        channel = channels.get(addresses[0])
        stub = health_pb2_grpc.HealthStub(channel)
        if ends == "well":
            await request(channel)
        elif ends == "cancelled":
            pending = asyncio.ensure_future(request(channel))
            await asyncio.sleep(0)  # the call begins
            pending.cancel()
            await asyncio.wait([pending])
        else:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Check(health_pb2.HealthCheckRequest(service="nobody's"))
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        async with asyncio.timeout(20):
            while channels.get(addresses[0]) is channel:
                await asyncio.sleep(0.001)
                channels.get(addresses[1])


async def test_a_replaced_channel_is_closed_after_its_last_call(
    channels: Channels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("baton.rpc.peers.SOON_S", 0.0)
    authority = trustme.CA()
    files = write(tmp_path / "files", authority)
    secured = Channels(MutualTls(files))
    async with serving(MutualTls(files)) as address:
        before = secured.get(address)
        watched = watch(before)
        await watched.read()
        write(tmp_path / "files", authority)
        assert secured.get(address) is not before
        secured.get(address)
        await request(before)  # open while the other call is
        watched.cancel()
        async with asyncio.timeout(20):
            while True:
                secured.get(address)
                await asyncio.sleep(0.001)
                try:
                    await request(before)
                except grpc.aio.UsageError:
                    break  # closed
        await request(secured.get(address))
    await secured.close()


class CountedSecurity(Plaintext):
    """Plaintext that counts how often its version is read."""

    def __init__(self) -> None:
        self.num_reads = 0

    @property
    def version(self) -> int:  # type: ignore[override]  # an attribute of the base class
        """Count the read."""
        self.num_reads += 1
        return 0


async def test_one_check_of_the_certificates_serves_many_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.rpc.peers.VERSION_INTERVAL_S", 60.0)
    security = CountedSecurity()
    channels = Channels(security)
    num_before = security.num_reads
    for _ in range(100):
        channels.get("127.0.0.1:1")
    assert security.num_reads == num_before + 1
    await channels.close()
