"""Loading and unloading of adapters at workers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc

from baton.protos.worker_pb2 import LoadAdapterRequest, LoadAdapterResponse, UnloadAdapterRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.router.adapters.adapter import DIGEST
from baton.router.errors import WorkerLost
from baton.router.workers.connection import WorkerConnection
from baton.rpc.status import shortened

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 300.0  # an adapter of some GB from a network file system
UNLOAD_TIMEOUT_S = 30.0
MAX_CALLS = 32  # at once
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)  # the worker has ended: it has no adapters
UNKNOWN = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)  # it has no adapter of this name
WITHOUT = "it was started without --enable-lora"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of loading an adapter at one worker."""

    connection: WorkerConnection
    worker_id: str
    digest: str = ""  # empty: it has not loaded the adapter
    reason: str = ""  # why; empty: the worker has ended
    is_new: bool = False  # the worker did not have the adapter before
    is_full: bool = False  # the worker has as many adapters as it may have


async def load_at_all(
    connections: Sequence[WorkerConnection], name: str, path: str, known: Container[str]
) -> list[Loaded]:
    """Load an adapter at workers; those that were lost are left out.

    A worker without room for it unloads adapters that are not known: a router that has ended left them there.
    """

    async def load(connection: WorkerConnection) -> Loaded:
        loaded = await load_at(connection, name, path)
        unknown = [each for each in connection.load.adapters if each not in known and each != name]
        if loaded.is_full and unknown:
            logger.warning("%s unloads unknown adapters to make room: %s", loaded.worker_id, unknown)
            for each in unknown:
                await unload_at(connection, each)
            loaded = await load_at(connection, name, path)
        return loaded

    found = await _at_all(connections, load)
    return [loaded for loaded in found if loaded.digest or loaded.reason]


async def load_at(connection: WorkerConnection, name: str, path: str) -> Loaded:
    """Load an adapter at a worker. Other contents that the worker has under this name are unloaded first."""
    description, channel, load = connection.description, connection.channel, connection.load
    if description is None or channel is None:
        return Loaded(connection, "")
    worker_id = description.worker_id
    if not description.HasField("adapters"):
        return Loaded(connection, worker_id, reason=WITHOUT)
    had, request = load.adapters.get(name), LoadAdapterRequest(name=name, path=path)
    try:
        try:
            response = await _loaded(channel, request)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
                raise
            await _unload(channel, name)
            response = await _loaded(channel, request)
    except grpc.aio.AioRpcError as error:
        is_full = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return Loaded(connection, worker_id, reason="" if error.code() in GONE else _reason(error), is_full=is_full)
    except WorkerLost:
        return Loaded(connection, worker_id)
    digest = response.adapter.digest
    if DIGEST.fullmatch(digest) is None:
        return Loaded(connection, worker_id, reason="its digest is malformed")
    load.list_adapters({**load.adapters, name: digest})  # its report of it may be on the way
    return Loaded(connection, worker_id, digest, is_new=had != digest)


async def unload_at_all(connections: Sequence[WorkerConnection], name: str) -> None:
    """Unload an adapter at the workers that have it. Running requests end as usual."""
    await _at_all(connections, lambda each: unload_at(each, name))


async def unload_at(connection: WorkerConnection, name: str) -> None:
    """Unload an adapter at a worker, if it has it; errors are logged, and it is tried again later."""
    channel, load = connection.channel, connection.load
    if channel is None or name not in load.adapters:
        return
    load.list_adapters({key: digest for key, digest in load.adapters.items() if key != name})
    try:
        await _unload(channel, name)
    except grpc.aio.AioRpcError as error:
        if error.code() not in GONE:
            logger.warning("the adapter %s was not unloaded at %s: %s", name, connection.address, _reason(error))
    except WorkerLost:
        logger.debug("the worker at %s was lost with the adapter %s", connection.address, name)


async def _loaded(channel: grpc.aio.Channel, request: LoadAdapterRequest) -> LoadAdapterResponse:
    return await _finished(WorkerStub(channel).LoadAdapter(request, timeout=LOAD_TIMEOUT_S))


async def _unload(channel: grpc.aio.Channel, name: str) -> None:
    try:
        await _finished(WorkerStub(channel).UnloadAdapter(UnloadAdapterRequest(name=name), timeout=UNLOAD_TIMEOUT_S))
    except grpc.aio.AioRpcError as error:
        if error.code() not in UNKNOWN:
            raise


async def _finished(call: Awaitable[T]) -> T:
    """Return a call's response. Raises WorkerLost if its channel is closed, for which gRPC raises a cancellation."""
    task = asyncio.current_task()
    assert task is not None
    num_before = task.cancelling()
    try:
        return await call
    except grpc.aio.UsageError as error:
        raise WorkerLost(str(error)) from error
    except asyncio.CancelledError as error:
        if task.cancelling() > num_before:
            raise
        raise WorkerLost("the connection was closed") from error


async def _at_all(connections: Sequence[WorkerConnection], work: Callable[[WorkerConnection], Awaitable[T]]) -> list[T]:
    turns = asyncio.Semaphore(MAX_CALLS)

    async def in_turn(connection: WorkerConnection) -> T:
        async with turns:
            return await work(connection)

    return await asyncio.gather(*map(in_turn, connections))


def _reason(error: grpc.aio.AioRpcError) -> str:
    return shortened(error.details() or error.code().name)


def problem_of(name: str, path: str, loaded: Sequence[Loaded]) -> str | None:
    """Return why an adapter cannot be served after it was loaded at all workers; None: it can."""
    for each in loaded:
        if each.reason:
            return f"worker {each.worker_id} cannot load the adapter {name}: {each.reason}"
    by_digest: dict[str, list[str]] = {}
    for each in loaded:
        by_digest.setdefault(each.digest, []).append(each.worker_id)
    if len(by_digest) < 2:
        return None
    shown = "; ".join(f"{digest} at {', '.join(ids[:4])}" for digest, ids in list(by_digest.items())[:4])
    return f"{path} has different contents at the workers (digests: {shown}); copy the same adapter to all of them"
