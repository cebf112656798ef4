import base64
import errno
import json
import socket
import sys
from contextlib import closing

import pytest
import torch

from baton.kvtransfer import factory as registry
from baton.kvtransfer.base import KVTransport, PoolDescription, PoolIdentity
from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.settings.names import TRANSPORTS

IDENTITY = PoolIdentity("life", "model")
HOST = "127.0.0.1"


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_every_named_transport_serves_a_pool(name: str) -> None:
    memory = SharedPool()
    pool = memory.allocate((4, 64), torch.float32)
    transport = create_transport(name, IDENTITY, memory, "127.0.0.1")
    description = transport.register_pool(pool)
    assert (description.num_blocks, description.block_bytes) == (4, 256)
    assert description.incarnation == "life"
    expected = {"shared_memory", "tcp"} if name == "auto" and not registry.has_rdma_device() else {name}
    assert expected <= set(description.endpoints)
    assert not transport.choices
    await transport.close()
    memory.close()


@pytest.mark.parametrize("has_device", [False, True])
async def test_auto_logs_once_that_nixl_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_device: bool
) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    monkeypatch.setattr(registry, "has_rdma_device", lambda: has_device)
    caplog.set_level("INFO", "baton.kvtransfer")
    memory = SharedPool()
    transport = create_transport("auto", IDENTITY, memory, "127.0.0.1")
    transport.register_pool(memory.allocate((4, 64), torch.float32))
    records = [each for each in caplog.records if 'pip install "baton-serve[nixl]"' in each.getMessage()]
    assert [each.levelname for each in records] == (["WARNING"] if has_device else ["INFO"])
    await transport.close()
    memory.close()


async def test_a_transport_that_does_not_work_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedPool()
    pool = memory.allocate((4, 64), torch.float32)
    with pytest.raises(ValueError, match="known are auto, shared_memory, nixl, tcp"):
        create_transport("carrier pigeon", IDENTITY, memory, "127.0.0.1")
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(TransportUnavailable, match=r'nixl needs nixl, .*: pip install "baton-serve\[nixl\]"'):
        create_transport("nixl", IDENTITY, memory, "127.0.0.1")
    # `auto` works without it and logs so.
    monkeypatch.setattr(registry, "has_rdma_device", lambda: True)
    transport = create_transport("auto", IDENTITY, memory, "127.0.0.1")
    assert set(transport.register_pool(pool).endpoints) == {"shared_memory", "tcp"}
    await transport.close()
    # No host has a documentation address, and peers cannot connect to the unspecified address.
    for host, words in (("192.0.2.1", "cannot listen on"), ("0.0.0.0", "not an address that peers can reach")):
        tcp = create_transport("tcp", IDENTITY, memory, host)
        with pytest.raises(TransportUnavailable, match=words):
            tcp.register_pool(pool)
        await tcp.close()
    memory.close()


def neighbours(count: int = 2) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        with closing(socket.create_server((HOST, 0))) as first:
            port: int = first.getsockname()[1]
            try:
                for other in range(port + 1, port + count):
                    socket.create_server((HOST, other)).close()
            except (OSError, OverflowError):
                continue
            return port


def port_of(description: PoolDescription, transport: str) -> int:
    port: int = json.loads(description.endpoints[transport])["port"]
    return port


def create(name: str, life: str, port: int) -> tuple[KVTransport, SharedPool]:
    """Create a transport without a registered pool, and its memory."""
    memory = SharedPool()
    return create_transport(name, PoolIdentity(life, "model"), memory, HOST, port), memory


async def test_transports_listen_on_the_given_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "has_rdma_device", lambda: True)
    port = neighbours()
    for name, expected in (("tcp", {"tcp": port}), ("nixl", {"nixl": port}), ("auto", {"tcp": port, "nixl": port + 1})):
        transport, memory = create(name, "life", port)
        description = transport.register_pool(memory.allocate((4, 64), torch.float32))
        assert {each: port_of(description, each) for each in expected} == expected
        await transport.close()
        memory.close()


async def test_a_restarted_process_gets_its_port_although_readers_were_connected() -> None:
    port = neighbours()
    reader, reader_memory = create("tcp", "reader", 0)
    pool = reader_memory.allocate((4, 64), torch.float32)
    reader.register_pool(pool)
    for value, life in enumerate(("first", "second"), start=7):
        transport, memory = create("tcp", life, port)
        description = transport.register_pool(memory.allocate((4, 64), torch.float32).fill_(value))
        await reader.read(await reader.connect(description), [0], [1], 10)
        assert pool[1].tolist() == [value] * 64
        await transport.close()  # this side closes first: the port is in TIME_WAIT
        memory.close()
    await reader.close()
    reader_memory.close()


@pytest.mark.parametrize("name", ["tcp", "nixl", "auto"])
async def test_a_port_in_use_is_an_error_even_if_another_transport_would_work(name: str) -> None:
    with closing(socket.create_server((HOST, 0))) as listener:
        port = listener.getsockname()[1]
        transport, memory = create(name, "life", port)
        pool = memory.allocate((4, 64), torch.float32)
        with pytest.raises(OSError, match=f"cannot listen on port {port} of 127.0.0.1 for readers of KV") as caught:
            transport.register_pool(pool)
        assert caught.value.errno == errno.EADDRINUSE
        await transport.close()
        memory.close()


@pytest.mark.skipif(torch.distributed.is_nccl_available(), reason="this torch has NCCL")
async def test_nccl_needs_torch_with_nccl_and_auto_on_a_gpu_works_without() -> None:
    memory = SharedPool()
    with pytest.raises(TransportUnavailable, match=r"this torch \(.*\) has no NCCL"):
        create_transport("nccl", IDENTITY, memory, HOST)
    transport = create_transport("auto", IDENTITY, memory, HOST, device=torch.device("cuda", 0))
    # A pool in host memory, since there may be no GPU; all of these transports accept it.
    assert set(transport.register_pool(torch.zeros(4, 64)).endpoints) == {"nixl", "staged"}
    await transport.close()
    memory.close()


async def test_ports_of_gpu_transports_are_consecutive() -> None:
    port = neighbours(4)
    for name, expected in (("staged", {"staged": 2}), ("auto", {"nixl": 1, "staged": 2})):
        memory = SharedPool()
        device = torch.device("cuda", 0)
        transport = create_transport(name, IDENTITY, memory, HOST, port, device)
        description = transport.register_pool(torch.zeros(4, 64))
        assert {each: port_of(description, each) - port for each in expected} == expected
        window = json.loads(json.loads(description.endpoints["staged"])["window"])
        assert json.loads(base64.b64decode(window["tcp"]))["port"] == port
        await transport.close()
        memory.close()
