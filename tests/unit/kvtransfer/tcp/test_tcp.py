import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from baton.kvtransfer import listener
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransferDeadline
from baton.kvtransfer.handshake import PROTOCOL
from baton.kvtransfer.tcp import frames as tcp_frames
from tests.unit.kvtransfer.kv_peers import Cluster, fill, holds

IDENTITY = PoolIdentity("server", "model")
SHAPE = (16, 1024)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster("tcp", IDENTITY, SHAPE, 10.0)
    fill(cluster.pool, 3)
    yield cluster
    await cluster.end()


def greeting(cluster: Cluster, **changes: object) -> bytes:
    address = json.loads(cluster.description.endpoints["tcp"])
    hello: dict[str, object] = {
        "protocol": PROTOCOL,
        "key": address["key"],
        "incarnation": "server",
        "caller": "a caller",
        "fingerprint": "model",
        "block_bytes": SHAPE[1] * 8,
    }
    body = json.dumps({**hello, **changes}).encode()
    return len(body).to_bytes(4, "little") + body


def exchange(cluster: Cluster, sent: bytes) -> bytes:
    """Send bytes and return everything that the server sends until it closes."""
    address = json.loads(cluster.description.endpoints["tcp"])
    received = b""
    sock = socket.create_connection((address["host"], address["port"]), 20)
    with sock, suppress(OSError):  # it may close with our bytes unread
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        while chunk := sock.recv(1 << 16):
            received += chunk
    return received


async def assert_serves(cluster: Cluster) -> None:
    request = tcp_frames.REQUEST.pack(2) + (5).to_bytes(4, "little") + (0).to_bytes(4, "little")
    received = await asyncio.to_thread(exchange, cluster, greeting(cluster) + request)
    assert received.endswith(cluster.pool[5].numpy().tobytes() + cluster.pool[0].numpy().tobytes())


async def test_garbage_ends_only_its_connection(cluster: Cluster) -> None:
    rng = random.Random(1)
    garbage = [rng.randbytes(rng.randint(1, 300)) for _ in range(40)]
    garbage += [b"", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00[]", b"\x04\x00\x00\x00null", b"GET / HTTP/1.1\r\n\r\n"]
    garbage.append((60_000).to_bytes(4, "little") + b"[" * 60_000)
    for sent in garbage:
        assert await asyncio.to_thread(exchange, cluster, sent) == b""
    await assert_serves(cluster)


async def test_silent_connections_have_a_bound(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_HANDSHAKES", 8)
    address = json.loads(cluster.description.endpoints["tcp"])
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.socket()) for _ in range(12)]
        for each in silent:
            each.setblocking(False)
            await loop.sock_connect(each, (address["host"], address["port"]))
        async with asyncio.timeout(listener.HANDSHAKE_DEADLINE_S / 2):
            for each in silent[:4]:
                assert await loop.sock_recv(each, 1) == b""  # the oldest are closed at once
        await assert_serves(cluster)
        assert all(listener.is_open(each) for each in silent[5:])  # one more made room for a peer


@pytest.mark.parametrize("what", ["protocol", "key", "incarnation", "fingerprint", "block_bytes"])
async def test_a_wrong_greeting_is_refused_with_the_reason(cluster: Cluster, what: str) -> None:
    for wrong in ("x", None, 7, {"a": []}):
        answer = await asyncio.to_thread(exchange, cluster, greeting(cluster, **{what: wrong}))
        refusal = json.loads(answer[4:])["refused"]
        assert what in refusal
        assert json.loads(cluster.description.endpoints["tcp"])["key"] not in refusal
    await assert_serves(cluster)


async def test_a_caller_must_send_its_incarnation(cluster: Cluster) -> None:
    for wrong in (None, 7, {"a": []}, "", "x" * 201):
        answer = await asyncio.to_thread(exchange, cluster, greeting(cluster, caller=wrong))
        assert "caller must be an incarnation" in json.loads(answer[4:])["refused"]
    await assert_serves(cluster)


async def test_the_serving_side_checks_the_blocks(cluster: Cluster) -> None:
    for block in (16, 0xFFFFFFFF):
        request = tcp_frames.REQUEST.pack(2) + (3).to_bytes(4, "little") + block.to_bytes(4, "little")
        answer = await asyncio.to_thread(exchange, cluster, greeting(cluster) + request)
        assert answer.endswith(f"block {block} is not one of the pool's 16".encode())
    too_many = tcp_frames.REQUEST.pack(tcp_frames.MAX_REQUEST_UNITS + 1)
    answer = await asyncio.to_thread(exchange, cluster, greeting(cluster) + too_many)
    assert json.loads(answer[4:])["num_blocks"] == 16  # admitted, but no response to the request
    cut_off = tcp_frames.REQUEST.pack(5) + b"\1\0\0\0"
    await asyncio.to_thread(exchange, cluster, greeting(cluster) + cut_off)
    await assert_serves(cluster)


async def test_a_wrong_response_is_refused(cluster: Cluster) -> None:
    """The peer greets correctly, and then sends too much, too little, or a refusal."""
    for status, num_bytes, error in ((0, 9, PeerRefused), (7, 0, PeerRefused), (0, SHAPE[1] * 8, PeerLost)):
        listener = socket.create_server(("127.0.0.1", 0))
        address = json.loads(cluster.description.endpoints["tcp"])
        impostor = json.dumps({**address, "port": listener.getsockname()[1]}).encode()
        description = replace(
            cluster.description, incarnation=f"peer-{status}-{num_bytes}", endpoints={"tcp": impostor}
        )
        answering = asyncio.create_task(
            asyncio.to_thread(answer_wrongly, listener, description.incarnation, status, num_bytes)
        )
        peer = await cluster.transport.connect(description)
        with pytest.raises(error):
            await cluster.transport.read(peer, [0], [1], 20.0)
        await answering
    assert len(cluster.transport.quarantine) == 0


def answer_wrongly(listener: socket.socket, incarnation: str, status: int, num_bytes: int) -> None:
    with listener, listener.accept()[0] as sock:
        sock.recv(int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "little"), socket.MSG_WAITALL)
        welcome = {"incarnation": incarnation, "fingerprint": "model", "num_blocks": 16, "block_bytes": SHAPE[1] * 8}
        body = json.dumps(welcome).encode()
        sock.sendall(len(body).to_bytes(4, "little") + body)
        sock.recv(8, socket.MSG_WAITALL)
        sock.sendall(tcp_frames.RESPONSE.pack(status, num_bytes) + b"x" * 9)


async def test_many_concurrent_reads_leave_few_idle_connections(cluster: Cluster) -> None:
    source = await cluster.start_peer()
    peer = await cluster.transport.connect(source.description)
    cluster.pool.fill_(-1)
    await asyncio.gather(*(cluster.transport.read(peer, [15 - block], [block], 20.0) for block in range(16)))
    assert all(holds(cluster.pool, block, 1, 15 - block) for block in range(16))


async def test_a_cancel_does_not_affect_other_reads_of_the_peer(cluster: Cluster) -> None:
    """A read cancelled just after its end must not touch its connection, which another read may use by then."""
    source = await cluster.start_peer()
    peer = await cluster.transport.connect(source.description)
    rng = random.Random(4)
    for _ in range(60):
        cancelled = [asyncio.create_task(cluster.transport.read(peer, [block], [block], 20.0)) for block in range(3)]
        others = [asyncio.create_task(cluster.transport.read(peer, [block], [block], 20.0)) for block in range(3, 8)]
        for task in cancelled:
            asyncio.get_running_loop().call_later(rng.uniform(0, 1.5e-3), task.cancel)
        await asyncio.gather(*cancelled, return_exceptions=True)
        await asyncio.gather(*others)
    assert peer in cluster.transport.choices


async def test_a_silent_peer_does_not_block_reads_from_others(cluster: Cluster) -> None:
    silent, lively = await cluster.start_peer(seed=1), await cluster.start_peer(seed=2)
    peers = [await cluster.transport.connect(source.description) for source in (silent, lively)]
    silent.stop()
    held = [asyncio.create_task(cluster.transport.read(peers[0], [0], [block], 20.0)) for block in range(8)]
    refused = [asyncio.create_task(cluster.transport.read(peers[0], [0], [8], 0.05)) for _ in range(80)]
    outcomes = await asyncio.gather(*refused, return_exceptions=True)
    assert all(isinstance(outcome, TransferDeadline) for outcome in outcomes)
    await cluster.transport.read(peers[1], [3], [9], 20.0)
    assert holds(cluster.pool, 9, 2, 3)
    assert not any(task.done() for task in held)
    silent.resume()
    await asyncio.gather(*held)
