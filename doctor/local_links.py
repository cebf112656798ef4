"""The transports between two processes of this machine."""

import asyncio
import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch

from baton.doctor.link import Link
from baton.doctor.probe import Reader, probe
from baton.kvtransfer.base import KVTransport, PoolDescription, PoolIdentity
from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.factory import TRANSPORTS, create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool

HOST = "127.0.0.1"
FINGERPRINT = "doctor"
BLOCK_BYTES = 256 << 10
POOL_BYTES = 16 << 20
START_DEADLINE_S = 120.0  # importing torch takes seconds
END_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class OwnedPool:
    """What the other process offers."""

    pool: PoolDescription
    unavailable: Mapping[str, str]  # transport to why it does not work


def measure_local_links(setting: str) -> list[Link]:
    """Reads from another process of this machine: as the transport setting chooses, then by every other transport.

    Blocks for some seconds; to be called in a thread that runs no event loop. Raises OSError or EOFError if the other
    process does not start, or ends.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_own_pool, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_DEADLINE_S):
            raise TimeoutError(f"a process of our own did not start within {START_DEADLINE_S:g} s")
        owned = ours.recv()
        assert isinstance(owned, OwnedPool)
        links = probe(Reader(FINGERPRINT, BLOCK_BYTES, HOST), owned.pool, setting)
        return [*links, *_missing(owned, setting, links[0])]
    finally:
        ours.close()
        process.join(END_DEADLINE_S)
        if process.is_alive():
            process.kill()
            process.join()


def _missing(owned: OwnedPool, setting: str, like: Link) -> list[Link]:
    """The transports that the other process could not even start."""
    return [
        replace(like, asked=name, transport=None, reason=reason, rates=None)
        for name, reason in owned.unavailable.items()
        if name != setting
    ]


def _own_pool(pipe: Connection) -> None:
    """The other process: one pool, and every transport that works here, until the reader has ended."""
    torch.set_num_threads(1)
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    memory = SharedPool()
    pool = memory.allocate((POOL_BYTES // BLOCK_BYTES, BLOCK_BYTES), torch.uint8)
    identity = PoolIdentity("doctor-owner", FINGERPRINT)
    transports: list[KVTransport] = []
    descriptions: list[PoolDescription] = []
    unavailable: dict[str, str] = {}
    for name in TRANSPORTS:
        if name == "auto":
            continue
        try:
            transports.append(create_transport(name, identity, memory, HOST))
            descriptions.append(transports[-1].register_pool(pool))
        except TransportUnavailable as error:
            unavailable[name] = str(error)
    if not descriptions:
        raise TransportUnavailable(f"no KV transport works here: {unavailable}")
    endpoints = {name: value for description in descriptions for name, value in description.endpoints.items()}
    pipe.send(OwnedPool(replace(descriptions[0], endpoints=endpoints), unavailable))
    await asyncio.to_thread(pipe.poll, None)
    for transport in transports:
        await transport.close()
