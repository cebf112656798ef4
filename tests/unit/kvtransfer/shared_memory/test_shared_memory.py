import asyncio
import json
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.kvtransfer.base import PoolDescription, PoolIdentity
from baton.kvtransfer.errors import PeerRefused, TransportUnavailable
from baton.kvtransfer.handshake import PROTOCOL
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.shared_memory.transport import SharedMemoryBackend, map_blocks
from baton.kvtransfer.transport import Transport
from tests.unit.kvtransfer.kv_peers import Cluster

IDENTITY = PoolIdentity("reader", "model")


def test_a_shared_pool_holds_one_zeroed_tensor() -> None:
    memory = SharedPool()
    with pytest.raises(ValueError, match="shape"):
        memory.allocate((4, 0), torch.float32)
    tensor = memory.allocate((4, 3, 5), torch.bfloat16)
    assert tensor.shape == (4, 3, 5)
    assert bool((tensor == 0).all())
    assert memory.holds(tensor)
    assert memory.holds(tensor.view(4, 15))
    assert not memory.holds(tensor[1:])
    assert not memory.holds(torch.zeros(4, 3, 5, dtype=torch.bfloat16))
    tensor[3] = 1
    assert os.pread(memory.fd, 2, tensor.nbytes - 2) == b"\x80\x3f"  # 1 in bfloat16: the file is the tensor
    with pytest.raises(ValueError, match="allocated already"):
        memory.allocate((4, 3), torch.float32)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(memory.fd, 4096)  # sealed: the file cannot shrink, which would kill readers
    with pytest.raises(OSError, match="not permitted"):
        os.pwrite(memory.fd, b"x", 0)  # nor can a holder of the descriptor write
    memory.close()
    memory.close()
    assert float(tensor[3, 0, 0]) == 1  # the memory is freed with the last tensor


def test_only_the_pools_own_tensor_is_registered() -> None:
    transport = Transport(IDENTITY, [SharedMemoryBackend(SharedPool())])
    with pytest.raises(ValueError, match="SharedPool"):
        transport.register_pool(torch.zeros(4, 4))


async def test_a_killed_owner_leaves_nothing_behind() -> None:
    cluster = Cluster("shared_memory", IDENTITY, (64, 8192), 10.0)
    source = await cluster.start_peer()
    peer = await cluster.transport.connect(source.description)
    assert "baton-kv-pool" in Path("/proc/self/maps").read_text()
    before = num_pool_mappings()
    source.kill()
    async with asyncio.timeout(10):
        while peer in cluster.transport.choices:
            await asyncio.sleep(0.001)
    assert num_pool_mappings() == before - 1  # that was the last mapping, so the owner's pages are free
    name = json.loads(source.description.endpoints["shared_memory"])["name"]
    assert name not in Path("/proc/net/unix").read_text()
    await cluster.end()


def num_pool_mappings() -> int:
    return Path("/proc/self/maps").read_text().count("baton-kv-pool")


async def test_a_peer_on_another_host_is_unreachable() -> None:
    cluster = Cluster("shared_memory", IDENTITY, (8, 1024), 10.0)
    source = await cluster.start_peer()
    address = json.loads(source.description.endpoints["shared_memory"])
    elsewhere = json.dumps({**address, "host": "another boot id"}).encode()
    with pytest.raises(TransportUnavailable, match="another host"):
        await cluster.transport.connect(replace(source.description, endpoints={"shared_memory": elsewhere}))
    wrong_key = json.dumps({**address, "key": "guessed"}).encode()
    with pytest.raises(PeerRefused, match="key does not match"):
        await cluster.transport.connect(replace(source.description, endpoints={"shared_memory": wrong_key}))
    await cluster.end()


async def test_a_peer_cannot_write_into_the_pool_that_it_maps() -> None:
    cluster = Cluster("shared_memory", IDENTITY, (8, 1024), 10.0)
    address = json.loads(cluster.description.endpoints["shared_memory"])
    hello = {
        "protocol": PROTOCOL,
        "key": address["key"],
        "incarnation": "reader",
        "caller": "a caller",
        "fingerprint": "model",
        "block_bytes": 8192,
    }
    body = json.dumps(hello).encode()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, f"\0{address['name']}")
        await loop.sock_sendall(sock, len(body).to_bytes(4, "little") + body)
        size = int.from_bytes(await loop.sock_recv(sock, 4), "little")
        assert json.loads(await loop.sock_recv(sock, size))["num_blocks"] == 8
        sock.setblocking(True)
        sock.settimeout(10)
        _, fds, _, _ = await asyncio.to_thread(socket.recv_fds, sock, 1, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fds[0], b"x", 0)
    os.close(fds[0])
    await cluster.end()


def test_a_file_that_is_not_the_described_pool_is_refused() -> None:
    memory = SharedPool()
    memory.allocate((4, 64), torch.uint8)
    described = PoolDescription("peer", "model", 4, 64, {})
    assert len(map_blocks(os.dup(memory.fd), described)) == 256
    with pytest.raises(PeerRefused, match="sealed"):
        map_blocks(os.dup(memory.fd), replace(described, num_blocks=8))
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 256)
    with pytest.raises(PeerRefused, match="sealed"):
        map_blocks(unsealed, described)
    memory.close()
