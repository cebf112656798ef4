"""Calls to the KVCache service of workers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc

from baton.engine.errors import QueueFull
from baton.protos.worker_pb2 import ClearRequest, ListPinsRequest, PinnedPrefix, PinRequest, UnpinRequest
from baton.protos.worker_pb2_grpc import KVCacheStub
from baton.router.errors import WorkerLost
from baton.router.pins.pin import Holding, Pin
from baton.router.workers.connection import WorkerConnection
from baton.router.workers.pool import WorkerPool
from baton.rpc.status import NotFound, Unavailable, error_from_code

T = TypeVar("T")

CALL_S = 10.0  # a worker responds between two steps
CLEAR_S = 120.0  # a store may have millions of blocks


class PinRefused(QueueFull):
    """A worker's quota does not allow a pin now."""

    def __init__(self, message: str, incarnation: str) -> None:
        """`incarnation`: of the worker."""
        super().__init__(message)
        self.incarnation = incarnation


class NotCached(Unavailable):
    """A worker has not cached all of a prefix that it should pin, or has restarted."""


@dataclass(frozen=True, slots=True)
class WorkerPin:
    """A pin as a worker reports it."""

    worker_id: str
    pin: PinnedPrefix


async def hold(connection: WorkerConnection, pin: Pin, is_whole: bool = True) -> dict[str, Holding]:
    """Have a worker pin a prefix that it has cached; return its incarnation with the confirmation.

    `is_whole`: refuse a shorter prefix. Raises NotCached, NotFound if the pin was deleted, PinRefused for a quota, or
    another error of `rpc.status`.
    """
    worker = ReachedWorker.of(connection)
    request = PinRequest(
        owner=pin.owner,
        name=pin.name,
        block_hashes=pin.prefix.hashes(worker.block_size),
        min_blocks=0 if is_whole else 1,
        ttl_s=max(pin.ttl_s(), 0.001),
        max_share=pin.max_share,
        created_s=pin.created_s,
        incarnation=worker.incarnation,
    )
    num_dropped = connection.load.reported.num_dropped_pins
    try:
        await worker.response(KVCacheStub(worker.channel).Pin(request, timeout=CALL_S))
    except grpc.aio.AioRpcError as error:
        details = error.details() or error.code().name
        if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            raise NotCached(details) from error
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise PinRefused(f"worker {worker.worker_id}: {details}", worker.incarnation) from error
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            details = f"worker {worker.worker_id} is of a version without pins"
        raise error_from_code(error.code().value[0], details) from error
    return {worker.incarnation: Holding(num_dropped)}


@dataclass(slots=True)
class Deletion:
    """Result of a deletion: incarnations of workers that had the pin, and of those that did not respond."""

    done: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


async def delete(
    pool: WorkerPool, owner: str, name: str, deleted_s: float, is_meant: Callable[[str], bool] = lambda _: True
) -> Deletion:
    """Delete a pin at all workers of which the incarnation `is_meant`.

    `deleted_s`: Unix time of the deletion, after which it is not placed anew; 0: it only moves.
    """
    request, deletion = UnpinRequest(owner=owner, name=name, deleted_s=deleted_s), Deletion()

    async def unpin(incarnation: str, connection: WorkerConnection) -> None:
        try:
            worker = ReachedWorker.of(connection)
            response = await worker.response(KVCacheStub(worker.channel).Unpin(request, timeout=CALL_S))
            if response.was_pinned:
                deletion.done.add(incarnation)
        except WorkerLost:
            deletion.failed.add(incarnation)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # of a version without pins
                deletion.failed.add(incarnation)

    found = [(each.description.incarnation, each) for each in pool.reached if each.description is not None]
    await asyncio.gather(*(unpin(incarnation, each) for incarnation, each in found if is_meant(incarnation)))
    return deletion


async def listed(pool: WorkerPool, owner: str) -> list[WorkerPin]:
    """Return the pins of an owner at all workers that respond."""
    request = ListPinsRequest(owner=owner)

    async def pins(connection: WorkerConnection) -> list[WorkerPin]:
        try:
            worker = ReachedWorker.of(connection)
            response = await worker.response(KVCacheStub(worker.channel).ListPins(request, timeout=CALL_S))
        except (grpc.aio.AioRpcError, WorkerLost):
            return []
        return [WorkerPin(worker.worker_id, pin) for pin in response.pins]

    return [each for found in await asyncio.gather(*map(pins, pool.reached)) for each in found]


async def cleared(pool: WorkerPool, tier: str = "") -> dict[str, int]:
    """Have all workers forget their cached blocks without holders; return the number of them by worker.

    `tier`: the name of a store, whose blocks are deleted instead. Raises NotFound if a worker does not have it,
    WorkerLost if one does not respond.
    """
    request = ClearRequest(tier=tier)

    async def clear(connection: WorkerConnection) -> tuple[str, int]:
        worker = ReachedWorker.of(connection)
        try:
            response = await worker.response(KVCacheStub(worker.channel).Clear(request, timeout=CLEAR_S))
        except grpc.aio.AioRpcError as error:
            details = error.details() or error.code().name
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise NotFound(f"worker {worker.worker_id}: {details}") from error
            raise WorkerLost(f"the cache of worker {worker.worker_id} was not cleared: {details}") from error
        return worker.worker_id, response.num_blocks

    return dict(await asyncio.gather(*map(clear, pool.reached)))


@dataclass(frozen=True, slots=True)
class ReachedWorker:
    """A worker that can be called."""

    worker_id: str
    incarnation: str
    block_size: int
    channel: grpc.aio.Channel

    @classmethod
    def of(cls, connection: WorkerConnection) -> "ReachedWorker":
        """Return the worker of a connection. Raises WorkerLost."""
        channel, found = connection.channel, connection.description
        if channel is None or found is None:
            raise WorkerLost(f"the worker at {connection.address} was lost")
        return cls(found.worker_id, found.incarnation, found.block_size, channel)

    async def response(self, call: Awaitable[T]) -> T:
        """Return the response of a call. Raises AioRpcError, or WorkerLost if the call's channel was closed."""
        task = asyncio.current_task()
        try:
            return await call
        except asyncio.CancelledError:
            if task is not None and task.cancelling():
                raise
            raise WorkerLost(f"worker {self.worker_id} was lost") from None
