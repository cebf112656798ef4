"""Pools in host memory that read each other over gloo."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch

from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.nccl.transport import PairBackend
from baton.kvtransfer.transport import Transport
from tests.unit.kvtransfer.kv_peers import CHUNK_TIMEOUT_S, HOST, fill
from tests.unit.kvtransfer.read_rig import LARGE_SHAPE, UNTOUCHED


class Side:
    """A pool in host memory with a gloo transport."""

    def __init__(self, seed: int, connect_deadline_s: float = 15.0) -> None:
        identity = PoolIdentity(uuid.uuid4().hex, "model")
        self.pool = torch.full(LARGE_SHAPE, UNTOUCHED)
        if seed:
            fill(self.pool, seed)
        self.backend = PairBackend(HOST, 0, connect_deadline_s, name="gloo", chunk_timeout_s=CHUNK_TIMEOUT_S)
        self.transport = Transport(identity, [self.backend])
        self.description = self.transport.register_pool(self.pool)


@asynccontextmanager
async def sides(connect_deadline_s: float = 15.0) -> AsyncIterator[tuple[Side, Side]]:
    both = Side(0, connect_deadline_s), Side(1, connect_deadline_s)
    try:
        yield both
    finally:
        for side in both:
            await side.transport.close()
