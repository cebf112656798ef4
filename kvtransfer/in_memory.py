"""The in-memory transport: peers within one process, for tests."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from baton.kvtransfer.base import Landed, PeerId, PoolDescription, PoolIdentity, TransportChoice, ignore_landed
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransferDeadline, TransportUnavailable
from baton.kvtransfer.local_pool import LocalPool, Units
from baton.kvtransfer.quarantine import Quarantine

NAME = "in_memory"


@dataclass(slots=True)
class InMemoryNetwork:
    """The pools that can reach each other, by incarnation, and the peers that are stopped."""

    pools: dict[str, LocalPool] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)  # replaced at every change of `stopped`

    def stop(self, incarnation: str) -> None:
        """Stop a peer: reads from it wait until it is resumed or killed."""
        self.stopped.add(incarnation)

    def resume(self, incarnation: str) -> None:
        """Resume a stopped peer."""
        self.stopped.discard(incarnation)
        self.resumed.set()
        self.resumed = asyncio.Event()

    def kill(self, incarnation: str) -> None:
        """End a peer: reads from it fail with PeerLost."""
        self.pools.pop(incarnation, None)
        self.resume(incarnation)


class InMemoryTransport:
    """KVTransport that copies unit by unit and lets the event loop run in between."""

    def __init__(
        self,
        identity: PoolIdentity,
        network: InMemoryNetwork,
        quarantine: Quarantine | None = None,
        connect_deadline_s: float = 5.0,
    ) -> None:
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self._identity = identity
        self._network = network
        self._connect_deadline_s = connect_deadline_s
        self._pool: LocalPool | None = None
        self._peers: dict[PeerId, Units] = {}

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """This transport, for every connected peer."""
        return {peer: TransportChoice(NAME, "same process") for peer in self._peers}

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Add the pool to the network; see KVTransport."""
        self._pool = LocalPool.of(pool, self._identity)
        self._pool.require_host_memory()
        self._network.pools[self._identity.incarnation] = self._pool
        return self._pool.describe({NAME: b""})

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Check the peer's pool against its description; see KVTransport."""
        units = self._require_pool().units(peer)
        if NAME not in peer.endpoints:
            raise TransportUnavailable(f"peer {peer.incarnation} does not offer {NAME}")
        try:
            async with asyncio.timeout(self._connect_deadline_s):
                pool = await self._answer(PeerId(peer.incarnation))
        except TimeoutError as error:
            raise TransferDeadline(f"peer {peer.incarnation} did not respond") from error
        if (pool.identity.fingerprint, pool.num_blocks, pool.block_bytes) != (
            peer.fingerprint,
            peer.num_blocks,
            peer.block_bytes,
        ):
            raise PeerRefused(f"the pool of peer {peer.incarnation} does not match its description")
        self._peers[PeerId(peer.incarnation)] = units
        return PeerId(peer.incarnation)

    async def read(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = ignore_landed,
    ) -> None:
        """Copy unit by unit; see KVTransport."""
        if peer not in self._peers:
            raise PeerLost(f"peer {peer} is not connected")
        units = self._peers[peer]
        units.check(peer, remote, local)
        target = self._require_pool().in_units(units.unit_bytes)
        blocks = units.local_blocks(local)
        self.quarantine.hold(blocks)
        try:
            async with asyncio.timeout(deadline_s):
                for theirs, ours in zip(remote, local, strict=True):
                    source = await self._answer(peer)
                    if peer not in self._peers:
                        raise PeerLost(f"peer {peer} was forgotten")
                    target[ours] = source.in_units(units.unit_bytes)[theirs]
                    landed(1)
        except TimeoutError as error:
            raise TransferDeadline(f"blocks from peer {peer} did not arrive within {deadline_s} s") from error
        finally:
            self.quarantine.release(blocks)
        await self._answer(peer)

    def forget(self, peer: PeerId) -> None:
        """Drop the connection to the peer; see KVTransport."""
        self._peers.pop(peer, None)

    async def close(self) -> None:
        """Remove the pool from the network and drop all peers; see KVTransport."""
        self._network.kill(self._identity.incarnation)
        self._peers.clear()

    def _require_pool(self) -> LocalPool:
        if self._pool is None:
            raise ValueError("no pool was registered")
        return self._pool

    async def _answer(self, peer: PeerId) -> LocalPool:
        await asyncio.sleep(0)
        while peer in self._network.stopped:
            await self._network.resumed.wait()
        if peer not in self._network.pools:
            self._peers.pop(peer, None)
            raise PeerLost(f"peer {peer} has ended")
        return self._network.pools[peer]
