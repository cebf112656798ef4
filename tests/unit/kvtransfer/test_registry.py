import sys

import pytest
import torch

from kvtransfer import registry
from kvtransfer.base import PoolIdentity
from kvtransfer.errors import TransportUnavailable
from kvtransfer.registry import TRANSPORTS, create_transport
from kvtransfer.shared_pool import SharedPool

IDENTITY = PoolIdentity("life", "model")


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


async def test_a_transport_that_does_not_work_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedPool()
    pool = memory.allocate((4, 64), torch.float32)
    with pytest.raises(ValueError, match="known are auto, shared_memory, tcp, nixl"):
        create_transport("carrier pigeon", IDENTITY, memory, "127.0.0.1")
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(TransportUnavailable, match="NIXL is not installed"):
        create_transport("nixl", IDENTITY, memory, "127.0.0.1")
    # The choice of `auto` goes on without it, and says so.
    monkeypatch.setattr(registry, "has_rdma_device", lambda: True)
    transport = create_transport("auto", IDENTITY, memory, "127.0.0.1")
    assert set(transport.register_pool(pool).endpoints) == {"shared_memory", "tcp"}
    await transport.close()
    # A documentation address is nobody's, and the unspecified one is everybody's.
    for host, words in (("192.0.2.1", "cannot listen on"), ("0.0.0.0", "not an address that peers can reach")):
        tcp = create_transport("tcp", IDENTITY, memory, host)
        with pytest.raises(TransportUnavailable, match=words):
            tcp.register_pool(pool)
        await tcp.close()
    memory.close()
