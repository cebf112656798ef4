"""The registry behind Sentinels, in a Redis Cluster, and over TLS."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from redis.asyncio import Redis

from baton.deployment.local.ports import free_ports
from baton.membership.registry.base import Member
from baton.membership.registry.factory import open_registry
from baton.membership.registry.redis_client import MAX_REPLY_BYTES
from tests.redis_server import HOST, RedisServer, redis_server
from tests.unit.membership.registry.registry_members import Views, following, kept, make_member

LEASE_S = 10.0


async def command(server: RedisServer, *words: str | int) -> object:
    """Return the server's response to a command."""
    async with Redis(host=HOST, port=server.port, decode_responses=True) as client:
        return await client.execute_command(*words)


async def survives_an_oversized_id(server: RedisServer, views: Views, *members: Member) -> None:
    """Add such an id to the set of members; return once it is deleted and the members are listed again."""
    await command(server, "SADD", "baton:{default}:workers", "x" * (MAX_REPLY_BYTES + 1))
    await views.until(lambda view: view.num_malformed == 1)
    await views.until_members(*members)


@asynccontextmanager
async def sentinel_of(master: RedisServer, directory: Path) -> AsyncIterator[RedisServer]:
    """Yield a Sentinel that knows the master, as `main`, and its replica."""
    directory.mkdir()
    configuration = directory / "sentinel.conf"
    configuration.write_text(
        f"sentinel monitor main {HOST} {master.port} 1\n"
        "sentinel down-after-milliseconds main 300\nsentinel failover-timeout main 2000\n"
    )
    sentinel = RedisServer(directory, "--sentinel", configuration=configuration)
    await sentinel.start()
    try:
        async with asyncio.timeout(20):
            while not await command(sentinel, "SENTINEL", "REPLICAS", "main"):
                await asyncio.sleep(0.02)
        yield sentinel
    finally:
        await sentinel.kill()


@pytest.mark.slow
async def test_a_registry_behind_sentinels_survives_a_failover(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        master = await stack.enter_async_context(redis_server(tmp_path / "master"))
        replica_of = (
            "--replicaof",
            HOST,
            str(master.port),
            "--repl-diskless-sync",
            "yes",
            "--repl-diskless-sync-delay",
            "0",
        )
        replica = await stack.enter_async_context(redis_server(tmp_path / "replica", *replica_of))
        async with asyncio.timeout(20):
            while "'state': 'online'" not in str(await command(master, "INFO", "replication")):
                await asyncio.sleep(0.02)
        sentinel = await stack.enter_async_context(sentinel_of(master, tmp_path / "sentinel"))
        registry, member = open_registry(f"redis+sentinel://{HOST}:{sentinel.port}/main"), make_member()
        stack.push_async_callback(registry.close)
        async with following(registry) as views, kept(registry.lease(member, LEASE_S)) as lease:
            await views.until_members(member)
            await survives_an_oversized_id(master, views, member)
            await master.kill()
            await views.until(lambda view: view.error is not None)
            lease.update(draining := replace(member, draining=True))
            await views.until_members(draining)
        assert "'role': 'master'" in str(await command(replica, "INFO", "replication"))


@pytest.mark.slow
async def test_a_registry_in_a_redis_cluster(tmp_path: Path) -> None:
    bus_port = str(free_ports(HOST, 1)[0])  # by default 10,000 above the port, where another program may listen
    async with redis_server(tmp_path, "--cluster-enabled", "yes", "--cluster-port", bus_port) as server:
        await command(server, "CLUSTER", "ADDSLOTS", *range(16384))
        async with asyncio.timeout(20):
            while "cluster_state:ok" not in str(await command(server, "CLUSTER", "INFO")):
                await asyncio.sleep(0.05)
        url = f"redis+cluster://{HOST}:{server.port}"
        workers, router = open_registry(url), open_registry(url)
        first, second = make_member(), make_member("decode-1")
        async with following(router) as views, kept(workers.lease(first, LEASE_S)):
            await views.until_members(first)
            async with kept(workers.lease(second, LEASE_S)):
                await views.until_members(first, second)
            await views.until_members(first)
            await survives_an_oversized_id(server, views, first)
            await server.kill()
            lost = await views.until(lambda view: view.error is not None)
            assert lost.members == (first,)
            await server.start()
            await views.until_members(first)
        await workers.close()
        await router.close()


@asynccontextmanager
async def tls_in_front(server: RedisServer, directory: Path) -> AsyncIterator[int]:
    """Yield a port at which the server is reached over TLS, with the certificate `directory/cert.pem`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(HOST, server.port)
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))
        for each in (writer, inner_writer):
            with suppress(ConnectionError, ssl.SSLError):
                await each.wait_closed()

    proxy = await asyncio.start_server(serve, HOST, 0, ssl=context)
    async with proxy:
        yield proxy.sockets[0].getsockname()[1]


async def test_a_registry_over_tls(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine to make a certificate with")
    subject = ["-subj", "/CN=redis", "-addext", f"subjectAltName=IP:{HOST}", "-days", "2"]
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    make = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *files, *subject]
    await asyncio.to_thread(subprocess.run, make, check=True, capture_output=True)
    async with (
        redis_server(tmp_path / "redis", "--requirepass", "secret") as server,
        tls_in_front(server, tmp_path) as port,
    ):
        place = f"rediss://:secret@{HOST}:{port}/0"
        trusting, distrusting = open_registry(f"{place}?ssl_ca_certs={tmp_path}/cert.pem"), open_registry(place)
        lease = trusting.lease(make_member(), LEASE_S)
        async with following(trusting) as views, following(distrusting) as refused, kept(lease):
            await views.until_members(make_member())
            view = await refused.until(lambda view: view.error is not None)
            assert "certificate" in str(view.error).lower()
            assert not view.is_listed
        await trusting.close()
        await distrusting.close()
