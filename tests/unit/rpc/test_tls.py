"""Mutual TLS between processes: a certificate of the cluster is required; files may be replaced."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from baton.rpc.peers import Channels
from baton.rpc.tls import MutualTls, Plaintext, Security, TlsFiles, make_security
from baton.settings.values import OptionError

NAME = "worker.baton.test"


def write(directory: Path, authority: trustme.CA, name: str = NAME) -> TlsFiles:
    """Write a certificate of the authority to files, replacing them atomically."""
    issued = authority.issue_cert(name)
    files = TlsFiles(*(str(directory / each) for each in ("cert.pem", "key.pem", "ca.pem")), server_name=name)
    directory.mkdir(exist_ok=True)
    cert = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    contents = (cert, issued.private_key_pem.bytes(), authority.cert_pem.bytes())
    for path, content in zip((files.cert, files.key, files.ca), contents, strict=True):
        Path(f"{path}.new").write_bytes(content)
        os.replace(f"{path}.new", path)
    return files


@asynccontextmanager
async def serving(security: Security) -> AsyncIterator[str]:
    """Serve health checks and yield the address."""
    server = grpc.aio.server()
    servicer = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = security.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def request(channel: grpc.aio.Channel) -> int:
    """Return a call's response. Raises AioRpcError."""
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return int(answer.status)


async def is_refused(security: Security, address: str) -> bool:
    async with security.channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await request(channel)
        return caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_only_members_of_the_cluster_reach_each_other(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    ours = MutualTls(write(tmp_path / "ours", authority))
    theirs = MutualTls(write(tmp_path / "theirs", stranger))
    async with serving(ours) as address, ours.channel(address) as channel:
        assert await request(channel) == health_pb2.HealthCheckResponse.SERVING
        assert await is_refused(theirs, address)
        assert await is_refused(Plaintext(), address)
        without = grpc.ssl_channel_credentials((tmp_path / "ours" / "ca.pem").read_bytes())
        options = (("grpc.ssl_target_name_override", NAME),)
        async with grpc.aio.secure_channel(address, without, options=options) as bare:
            with pytest.raises(grpc.aio.AioRpcError):
                await request(bare)
    async with serving(theirs) as address:
        assert await is_refused(ours, address)
    async with serving(Plaintext()) as address:
        assert await is_refused(ours, address)


async def test_a_server_must_have_the_expected_name(tmp_path: Path) -> None:
    authority = trustme.CA()
    server = MutualTls(write(tmp_path / "server", authority, "other.baton.test"))
    client = MutualTls(write(tmp_path / "client", authority))
    async with serving(server) as address:
        assert await is_refused(client, address)


async def test_replaced_files_apply_to_new_connections_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.rpc.peers.VERSION_INTERVAL_S", 0.0)
    old, new = trustme.CA(), trustme.CA()
    server, client = (MutualTls(write(tmp_path / name, old)) for name in ("server", "client"))
    channels = Channels(client)
    async with serving(server) as address:
        before = channels.get(address)
        await request(before)
        for name in ("server", "client"):
            write(tmp_path / name, new)
        await request(before)  # its connection stays open
        after = channels.get(address)
        assert after is not before
        await request(after)
        assert channels.get(address) is after
        stranger = MutualTls(write(tmp_path / "stranger", old))
        assert await is_refused(stranger, address)
    await channels.close()


async def test_mismatched_files_change_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    files = write(tmp_path / "server", authority)
    server, client = MutualTls(files), MutualTls(write(tmp_path / "client", authority))
    async with serving(server) as address:
        Path(files.key).write_bytes(authority.issue_cert(NAME).private_key_pem.bytes())
        async with client.channel(address) as channel:
            await request(channel)
        assert "certificates changed and cannot be read" in caplog.text
        assert server.version == 1
        Path(files.cert).unlink()
        async with client.channel(address) as channel:
            await request(channel)


def test_unusable_files_are_refused_at_the_start(tmp_path: Path) -> None:
    files = write(tmp_path / "files", trustme.CA())
    assert isinstance(make_security(None, None, None, None), Plaintext)
    assert isinstance(make_security(files.cert, files.key, files.ca, None), MutualTls)
    with pytest.raises(OptionError, match="all three are needed"):
        make_security(files.cert, None, files.ca, None)
    with pytest.raises(OptionError, match="No such file"):
        make_security(files.cert, files.key, str(tmp_path / "none.pem"), None)
    other = trustme.CA().issue_cert(NAME).private_key_pem.bytes()
    Path(files.key).write_bytes(other)
    with pytest.raises(OptionError, match=r"KEY_VALUES_MISMATCH|key values mismatch"):
        make_security(files.cert, files.key, files.ca, None)


async def test_calls_on_replaced_channels_continue_until_their_owner_ends(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write(tmp_path / "files", authority)
    channels = Channels(MutualTls(files))
    async with serving(MutualTls(files)) as address:
        watched = health_pb2_grpc.HealthStub(channels.get(address)).Watch(health_pb2.HealthCheckRequest())
        await watched.read()
        write(tmp_path / "files", authority)
        await request(channels.get(address))
        assert not watched.done()
        await channels.close()
        async with asyncio.timeout(10):
            assert await watched.code() is grpc.StatusCode.CANCELLED


def test_a_server_name_without_certificates_is_refused() -> None:
    with pytest.raises(OptionError, match="all three are needed"):
        make_security(None, None, None, NAME)
