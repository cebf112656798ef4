"""Measurement of the transports between two processes of this machine."""

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
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.settings.names import TRANSPORTS

HOST = "127.0.0.1"
FINGERPRINT = "doctor"
BLOCK_BYTES = 256 << 10
POOL_BYTES = 16 << 20
START_DEADLINE_S = 120.0  # importing torch takes seconds
END_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class OwnedPool:
    """The pool of the other process, and the transports that do not work there."""

    pool: PoolDescription
    unavailable: Mapping[str, str]  # transport -> reason


def measure_local_links(setting: str) -> list[Link]:
    """Read from another process of this machine: first by the transport setting, then by every other transport.

    Blocks for some seconds; to be called in a thread without an event loop. Raises OSError or EOFError if the other
    process does not start or dies.
    """
    context = multiprocessing.get_context("spawn")
    pipe, owner_pipe = context.Pipe()
    process = context.Process(target=_own_pool, args=(owner_pipe,), daemon=True)
    process.start()
    owner_pipe.close()
    try:
        if not pipe.poll(START_DEADLINE_S):
            raise TimeoutError(f"the other process of the measurement did not start within {START_DEADLINE_S:g} s")
        owned = pipe.recv()
        assert isinstance(owned, OwnedPool)
        links = probe(Reader(FINGERPRINT, BLOCK_BYTES, HOST), owned.pool, setting)
        return [*links, *_missing(owned, setting, links[0])]
    finally:
        pipe.close()
        process.join(END_DEADLINE_S)
        if process.is_alive():
            process.kill()
            process.join()


def _missing(owned: OwnedPool, setting: str, like: Link) -> list[Link]:
    """Return failed links for the transports that the other process could not start."""
    return [
        replace(like, asked=name, transport=None, reason=reason, rates=None)
        for name, reason in owned.unavailable.items()
        if name != setting
    ]


def _own_pool(pipe: Connection) -> None:
    """Run the other process: one pool, served by every working transport until the reader closes the pipe."""
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
