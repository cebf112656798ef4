"""The KVCache service: pinned prefixes of a worker, and clearing of its caches."""

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

import grpc

from baton.engine.errors import EngineError
from baton.engine.kv.block_hash import HASH_BYTES, BlockHash, split_hashes
from baton.engine.kv.prefix_pins import PinKey, PinShare, PrefixPin
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Context, check_peer
from baton.rpc.status import NotFound, ServiceError, status_of
from baton.worker.base import NO_STORES, EngineCalls, Host, Stores
from baton.worker.saved_prefill import POOL

T = TypeVar("T")

MAX_NAME_CHARS = 256  # of an owner and of a pin
MAX_TTL_S = 365 * 86400.0  # event loop timers do not support much more


class KVCacheService(worker_pb2_grpc.KVCacheServicer):
    """The KVCache service. Pins belong to the engine's pool, so that they outlast a change of role."""

    def __init__(
        self, host: Host, max_pinned_fraction: float, note_change: Callable[[], None], stores: Stores = NO_STORES
    ) -> None:
        """`note_change` is called after each change, so that routers get a report of it."""
        self._host = host
        self._stores = stores
        self._note_change = note_change
        self._max_pinned_fraction = max_pinned_fraction
        self._timer: asyncio.TimerHandle | None = None  # for the first pin that expires

    async def Pin(  # noqa: N802
        self, request: worker_pb2.PinRequest, context: Context
    ) -> worker_pb2.PinResponse:
        """Hold a cached prefix for a time."""
        identity = self._host.identity
        await check_peer(context, identity, request.incarnation, identity.fingerprint)
        hashes = await _checked_hashes(request, context)
        share = PinShare(self._max_pinned_fraction, request.max_share or 1.0)
        key, min_blocks = PinKey(request.owner, request.name), request.min_blocks or len(hashes)

        def hold(engine: EngineCalls) -> PrefixPin | None:
            pins = engine.blocks.prefix_pins
            if pins.is_deleted(key, request.created_s):
                raise NotFound("the pin was deleted")
            return pins.hold(key, hashes, request.ttl_s, share, min_blocks)

        held = await self._called(hold, context)
        if held is None:
            text = f"the worker has not cached {min_blocks} blocks of the prefix; is its KV cache too small, or off?"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        self._expire_in(request.ttl_s)
        self._note_change()
        return worker_pb2.PinResponse(num_tokens=held.num_tokens)

    async def Unpin(  # noqa: N802
        self, request: worker_pb2.UnpinRequest, context: Context
    ) -> worker_pb2.UnpinResponse:
        """Release a pin."""
        key = PinKey(request.owner, request.name)
        deleted_s = request.deleted_s
        was_pinned = await self._called(lambda engine: engine.blocks.prefix_pins.delete(key, deleted_s), context)
        self._note_change()
        return worker_pb2.UnpinResponse(was_pinned=was_pinned)

    async def ListPins(  # noqa: N802
        self, request: worker_pb2.ListPinsRequest, context: Context
    ) -> worker_pb2.ListPinsResponse:
        """Return the pins of an owner."""

        def listed(engine: EngineCalls) -> list[worker_pb2.PinnedPrefix]:
            pins = engine.blocks.prefix_pins
            return [self._described(pin, pins.remaining_s(pin)) for pin in pins.of(request.owner)]

        return worker_pb2.ListPinsResponse(pins=await self._called(listed, context))

    async def Clear(  # noqa: N802
        self, request: worker_pb2.ClearRequest, context: Context
    ) -> worker_pb2.ClearResponse:
        """Forget the cached blocks that nothing holds, or delete those of a store."""
        if request.tier in ("", POOL):
            num_blocks = await self._called(lambda engine: engine.blocks.cache.clear(), context)
        else:
            try:
                num_blocks = await self._stores.clear(request.tier)
            except ServiceError as error:
                await context.abort(status_of(error).code, str(error))
        self._note_change()
        return worker_pb2.ClearResponse(num_blocks=num_blocks)

    async def _called(self, function: Callable[[EngineCalls], T], context: Context) -> T:
        """Return the result of a call into the engine. Ends the service's call if it fails."""
        try:
            return await self._host.call(function)
        except (EngineError, NotFound) as error:  # a quota, a deleted pin, or the engine has ended
            await context.abort(status_of(error).code, str(error))

    def _described(self, pin: PrefixPin, ttl_s: float) -> worker_pb2.PinnedPrefix:
        num_blocks = len(pin.blocks)
        return worker_pb2.PinnedPrefix(
            name=pin.key.name,
            num_tokens=pin.num_tokens,
            num_blocks=num_blocks,
            num_bytes=num_blocks * self._host.block_bytes,
            ttl_s=max(0.0, ttl_s),
        )

    def _expire_in(self, delay_s: float) -> None:
        """Release expired pins after a delay, and then whenever one expires: requests may wait for the blocks."""
        loop = asyncio.get_running_loop()
        if self._timer is None or loop.time() + delay_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        expiring = self._host.call(lambda engine: engine.blocks.prefix_pins.expire())
        expiring.add_done_callback(self._expire_next)

    def _expire_next(self, expiring: "asyncio.Future[float | None]") -> None:
        if expiring.cancelled() or expiring.exception() is not None:  # the engine has ended, and holds nothing
            return
        if (delay_s := expiring.result()) is not None:
            self._expire_in(delay_s)
        self._note_change()


async def _checked_hashes(request: worker_pb2.PinRequest, context: Context) -> list[BlockHash]:
    """Return the hashes of the prefix. Ends the call if a field is invalid."""
    text = ""
    if not request.name or max(len(request.name), len(request.owner)) > MAX_NAME_CHARS:
        text = f"name and owner may have at most {MAX_NAME_CHARS} characters, and a name is needed"
    elif not 0 < request.ttl_s <= MAX_TTL_S:
        text = f"ttl_s is {request.ttl_s:g}, but must be a number of seconds above 0 and at most {MAX_TTL_S:.0f}"
    elif not (0 <= request.max_share <= 1 and math.isfinite(request.max_share)):
        text = f"max_share is {request.max_share:g}, but must be from 0 to 1"
    elif not request.block_hashes or len(request.block_hashes) % HASH_BYTES:
        text = f"block_hashes has {len(request.block_hashes)} bytes, but must have {HASH_BYTES} for each block"
    if text:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
    return split_hashes(request.block_hashes)
