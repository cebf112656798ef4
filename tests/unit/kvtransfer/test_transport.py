import logging
import threading
import uuid
from dataclasses import replace

import pytest
import torch

from baton.kvtransfer.backend import Lose, Unavailable
from baton.kvtransfer.base import PoolDescription, PoolIdentity
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable
from baton.kvtransfer.local_pool import Units
from baton.kvtransfer.nixl.agent import NixlAgent
from baton.kvtransfer.nixl.transport import NixlBackend
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.shared_memory.transport import SharedMemoryBackend, SharedMemoryConnection
from baton.kvtransfer.tcp.transport import TcpBackend
from baton.kvtransfer.transport import Transport


class Side:
    """A pool that is served over shared memory and TCP."""

    def __init__(self, incarnation: str, value: int) -> None:
        identity = PoolIdentity(incarnation, "model")
        self.memory = SharedPool()
        self.pool = self.memory.allocate((8, 1024), torch.int64).fill_(value)
        self.transport = Transport(
            identity,
            [
                SharedMemoryBackend(self.memory),
                Unavailable("nixl", "no RDMA device on this host"),
                TcpBackend("127.0.0.1"),
            ],
        )
        self.description = self.transport.register_pool(self.pool)

    async def close(self) -> None:
        await self.transport.close()
        self.memory.close()


async def test_the_best_transport_that_reaches_the_peer_is_chosen_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ours, theirs = Side("ours", 0), Side("theirs", 7)
    assert set(ours.description.endpoints) == {"shared_memory", "tcp"}
    peer = await ours.transport.connect(theirs.description)
    assert ours.transport.choices[peer].transport == "shared_memory"
    assert ours.transport.choices[peer].reason == "same host"
    ours.transport.forget(peer)
    assert not ours.transport.choices
    endpoints = dict(theirs.description.endpoints)
    endpoints["shared_memory"] = endpoints["shared_memory"].replace(b'{"host": "', b'{"host": "elsewhere ')
    await ours.transport.connect(replace(theirs.description, endpoints=endpoints))
    choice = ours.transport.choices[peer]
    assert choice.transport == "tcp"
    assert "on another host" in choice.reason
    assert "nixl: no RDMA device" in choice.reason
    assert f"KV from peer theirs is read over tcp: {choice.reason}" in caplog.text
    assert "KV transport nixl is not used: no RDMA device on this host" in caplog.text
    await ours.transport.read(peer, [0, 1], [2, 3], 5.0)
    assert bool((ours.pool[2:4] == 7).all())
    assert bool((ours.pool[:2] == 0).all())
    await ours.close()
    await theirs.close()


async def test_a_refusal_or_a_dead_peer_does_not_lead_to_the_next_transport() -> None:
    ours, theirs = Side("ours", 0), Side("theirs", 7)
    with pytest.raises(PeerRefused):
        await ours.transport.connect(replace(theirs.description, incarnation="an earlier life"))
    await theirs.close()
    with pytest.raises(PeerLost):
        await ours.transport.connect(theirs.description)
    await ours.close()


async def test_without_any_transport_the_error_has_the_reasons() -> None:
    nowhere = Transport(PoolIdentity("ours", "model"), [Unavailable("nixl", "not installed")])
    with pytest.raises(TransportUnavailable, match="not installed"):
        nowhere.register_pool(torch.zeros(2, 2))
    ours, theirs = Side("ours", 0), Side("theirs", 7)
    with pytest.raises(TransportUnavailable, match="shared_memory: peer theirs does not offer shared_memory"):
        await ours.transport.connect(replace(theirs.description, endpoints={"nccl": b"{}"}))
    await ours.close()
    await theirs.close()


async def test_a_transport_that_did_not_reach_a_peer_is_not_tried_again_unless_no_other_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = Side("ours", 0), Side("theirs", 7)
    tried: list[str] = []

    async def refuse(
        self: SharedMemoryBackend, peer: PoolDescription, units: Units, lose: Lose
    ) -> SharedMemoryConnection:
        tried.append(peer.incarnation)
        raise TransportUnavailable("after a long trial")

    monkeypatch.setattr(SharedMemoryBackend, "open", refuse)
    for _ in range(3):
        peer = await ours.transport.connect(theirs.description)
        assert ours.transport.choices[peer].transport == "tcp"
        assert "shared_memory: after a long trial" in ours.transport.choices[peer].reason
        ours.transport.forget(peer)
    assert tried == ["theirs"]
    nowhere = replace(theirs.description, endpoints={})
    for _ in range(2):
        with pytest.raises(TransportUnavailable, match=r"shared_memory: after a long trial; .*tcp: "):
            await ours.transport.connect(nowhere)
    assert tried == ["theirs", "theirs"]
    await ours.close()
    await theirs.close()


async def test_a_transport_that_cannot_register_the_pool_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise TransportUnavailable("no libuct_cuda")

    def num_agents() -> int:
        return sum(thread.name == "baton-kv-nixl" for thread in threading.enumerate())

    monkeypatch.setattr(NixlAgent, "register", refuse)
    before, identity = num_agents(), PoolIdentity(uuid.uuid4().hex, "model")
    transport = Transport(identity, [NixlBackend(identity.incarnation, "127.0.0.1"), TcpBackend("127.0.0.1")])
    assert set(transport.register_pool(torch.zeros(2, 2)).endpoints) == {"tcp"}
    assert num_agents() == before + 1
    await transport.close()
    assert num_agents() == before
