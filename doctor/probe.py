"""The link probe: reads some blocks of a peer's pool by each transport into a scratch pool.

1. The probe creates a second transport in this process, with a small scratch pool. The worker's pool and transport are
   not involved: no used block is written, and no open connection is touched.
2. The transport connects to the owner like any reader, so fingerprint, block size and the owner's key are checked.
3. It reads the pool's first blocks in rounds, each next to a measurement of the expected bandwidth. It takes no lease:
   the contents are discarded.
4. The transport is closed, which waits until no write can land, and the scratch pool is freed.

The probe runs on a separate event loop in a separate thread, so that a backend whose start blocks does not block the
worker. It does not compute with torch: another team of OpenMP threads would slow the engine's steps.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median

import torch

from baton.doctor.link import LimitShare, Link, LinkRates
from baton.doctor.link_limit import LinkLimit, is_same_host, link_limit
from baton.doctor.rdma import received_bytes
from baton.kvtransfer.base import KVTransport, PeerId, PoolDescription, PoolIdentity
from baton.kvtransfer.errors import PeerLost, TransferError, TransportUnavailable
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.local_pool import unit_bytes_of
from baton.kvtransfer.nixl.rdma import has_rdma_device
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.settings.names import TRANSPORTS

ROUND_BYTES = 8 << 20
NUM_ROUNDS = 5  # after one warm-up round
NUM_LATENCIES = 5  # per round
ATTEMPT_DEADLINE_S = 10.0  # per transport
READ_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Reader:
    """The reading side: fingerprint and size of its blocks, and the host on which its transports may listen."""

    fingerprint: str
    block_bytes: int
    host: str


@dataclass(slots=True)
class Samples:
    """Measurements of the rounds."""

    bytes_per_s: list[float] = field(default_factory=list)
    limit_bytes_per_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)

    def share_of(self, limit: LinkLimit) -> LimitShare:
        """Return the best bandwidth as a share of the best limit: other load can only lower both."""
        best_limit = max(self.limit_bytes_per_s)
        return LimitShare(limit.name, best_limit, max(self.bytes_per_s) / best_limit)


def probe(reader: Reader, owner: PoolDescription, setting: str) -> list[Link]:
    """Measure the link by the transport setting, then by every other transport that the owner offers.

    Blocks for at most ATTEMPT_DEADLINE_S per transport; to be called in a thread without an event loop.
    """
    links = [asyncio.run(_attempt(reader, owner, setting))]
    others = [name for name in TRANSPORTS if name in owner.endpoints and name not in (setting, links[0].transport)]
    links += [asyncio.run(_attempt(reader, owner, name)) for name in others]
    return links


async def _attempt(reader: Reader, owner: PoolDescription, asked: str) -> Link:
    def link(transport: str | None, reason: str, rates: LinkRates | None) -> Link:
        return Link(asked, transport, reason, is_same_host(owner), has_rdma_device(), rates)

    memory = SharedPool()
    num_blocks = max(1, min(owner.num_blocks, ROUND_BYTES // reader.block_bytes))
    try:
        scratch = memory.allocate((num_blocks, reader.block_bytes), torch.uint8)
        identity = PoolIdentity(uuid.uuid4().hex, reader.fingerprint)
        transport = create_transport(asked, identity, memory, reader.host)
    except (TransportUnavailable, MemoryError, OSError) as error:
        memory.close()
        return link(None, str(error), None)
    try:
        async with asyncio.timeout(ATTEMPT_DEADLINE_S):
            transport.register_pool(scratch)
            peer = await transport.connect(owner)
            choice = transport.choices.get(peer)
            if choice is None:
                raise PeerLost(f"peer {peer} disconnected right after connecting")
            unit_bytes = unit_bytes_of(reader.block_bytes, owner.block_bytes)
            rates = await _measure(transport, peer, owner, choice.transport, num_blocks, unit_bytes)
            return link(choice.transport, choice.reason, rates)
    except TimeoutError:
        return link(None, f"the measurement did not finish within {ATTEMPT_DEADLINE_S:g} s", None)
    except (TransferError, OSError) as error:
        return link(None, str(error), None)
    finally:
        await transport.close()
        memory.close()


async def _measure(
    transport: KVTransport, peer: PeerId, owner: PoolDescription, used: str, num_units: int, unit_bytes: int
) -> LinkRates:
    units = list(range(num_units))  # whole blocks, if both sides' blocks have the same size
    num_bytes = num_units * unit_bytes
    samples = Samples()
    received_before = received_bytes()
    with ExitStack() as stack:
        limit = link_limit(used, owner, num_bytes)
        if limit is not None:
            stack.callback(limit.close)
        for number in range(NUM_ROUNDS + 1):
            if number == 1:
                samples = Samples()
            await _round(transport, peer, units, num_bytes, limit, samples)
    received_after = received_bytes()
    num_read = (NUM_ROUNDS + 1) * (num_bytes + NUM_LATENCIES * unit_bytes)
    return LinkRates(
        block_bytes=unit_bytes,
        latency_s=median(samples.latency_s),
        bytes_per_s=max(samples.bytes_per_s),
        read_bytes=num_read,
        rdma_bytes=None if received_before is None or received_after is None else received_after - received_before,
        limit=None if limit is None else samples.share_of(limit),
    )


async def _round(
    transport: KVTransport, peer: PeerId, units: list[int], num_bytes: int, limit: LinkLimit | None, samples: Samples
) -> None:
    if limit is not None:
        samples.limit_bytes_per_s.append(limit.bytes_per_s())
    many_s = await _timed(transport.read(peer, units, units, READ_DEADLINE_S))
    samples.bytes_per_s.append(num_bytes / many_s)
    for _ in range(NUM_LATENCIES):
        samples.latency_s.append(await _timed(transport.read(peer, units[:1], units[:1], READ_DEADLINE_S)))


async def _timed(work: Awaitable[None]) -> float:
    started_s = time.perf_counter()
    await work
    return time.perf_counter() - started_s
