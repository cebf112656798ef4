"""The computation of a pin's prefix, and the worker that then holds it."""

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from baton.engine.errors import EngineError
from baton.engine.sampling.params import SamplingParams
from baton.router.errors import FieldError, WorkerLost
from baton.router.generation import Generation, GenerationRequest
from baton.router.pins.pin import Pin
from baton.router.pins.worker_pins import NotCached, PinRefused, hold
from baton.router.pipeline import Pipeline
from baton.router.policy.cluster import WorkerRole, WorkerSnapshot
from baton.router.request_context import RequestContext, RoutingHints
from baton.router.workers.connection import WorkerConnection
from baton.router.workers.pool import WorkerPool
from baton.rpc.status import ServiceError

PREFIX_TOO_SHORT = "prefix_too_short"  # error code
NUM_COMPUTATIONS = 3  # of a prefix that is evicted before it is held


def prefix_request(token_ids: Sequence[int], pin: Pin, context: RequestContext) -> GenerationRequest:
    """Return the request that computes a prefix and has no output."""
    return GenerationRequest(
        request_id=f"pin-{uuid.uuid4().hex[:12]}",
        prompt=token_ids,
        sampling=SamplingParams(),
        seed=0,
        max_tokens=0,
        cache_salt=pin.prefix.cache_salt,
        adapter=pin.prefix.adapter,
        whole=True,
        context=context,
    )


async def prefix_generation(pipeline: Pipeline, pin: Pin, context: RequestContext) -> Generation:
    """Return the request that computes a prefix, prepared. Raises what `Pipeline.prepare` raises."""
    generation = await pipeline.prepare(prefix_request(pin.prefix.token_ids.tolist(), pin, context))
    return replace(generation, images=pin.prefix.images) if pin.prefix.images else generation


class Placement:
    """Places pins at the workers of a model."""

    def __init__(self, pool: WorkerPool, pipeline: Pipeline) -> None:
        self._pool = pool
        self._pipeline = pipeline

    def prefillers(self) -> list[WorkerSnapshot]:
        """Return the workers that compute prompts: of a disaggregated model not those that decode."""
        workers = self._pool.snapshot().workers
        return [each for each in workers if each.role is not WorkerRole.DECODE] or list(workers)

    def decoders(self) -> set[str]:
        """Return the incarnations of the other workers, at which a pin serves no prompt."""
        prefillers = {each.incarnation for each in self.prefillers()}
        return {each.incarnation for each in self._pool.snapshot().workers} - prefillers

    def check_size(self, pin: Pin) -> None:
        """Raise FieldError for a prefix that is shorter than a block of every worker."""
        smallest = min((worker.block_size for worker in self.prefillers()), default=1)
        if pin.num_tokens < smallest:
            text = f"the prefix has a length of {pin.num_tokens}, but whole KV blocks are pinned, of {smallest} tokens"
            raise FieldError("prompt", text, PREFIX_TOO_SHORT)

    async def place(self, pin: Pin, generation: Generation) -> None:
        """Have the worker that the policy chooses hold a pin, or another one if its quota is used up.

        Raises the first worker's PinRefused if none has room, NotFound if the pin was deleted, NotCached if it is
        evicted again and again, and what `Pipeline.generate` raises.
        """
        try:
            await self._place(pin, generation)
        except PinRefused as refusal:
            for worker in self.prefillers():
                if worker.incarnation == refusal.incarnation:
                    continue
                try:
                    await self.place_at(worker, pin, generation)
                except (ServiceError, EngineError):
                    continue  # the first refusal says enough
                return
            raise

    async def place_at(self, worker: WorkerSnapshot, pin: Pin, generation: Generation) -> None:
        """Have this worker hold a pin; raises like `place`."""
        hints = RoutingHints(decode_worker=worker.worker_id, plan="local")
        if worker.role is WorkerRole.PREFILL:
            hints = RoutingHints(prefill_worker=worker.worker_id)
        context = replace(generation.request.context, hints=hints)
        await self._place(pin, replace(generation, request=replace(generation.request, context=context)))

    async def _place(self, pin: Pin, generation: Generation) -> None:
        for left in reversed(range(NUM_COMPUTATIONS)):
            connection = await self._compute(generation)
            try:
                # Recurrent layers have checkpoints, so that the last blocks of a prefix may not be cached.
                pin.holders |= await hold(connection, pin, is_whole=left > 0)
            except NotCached:
                if not left:
                    raise
                continue
            except asyncio.CancelledError:  # the worker may hold it
                if connection.description is not None:
                    pin.strays.add(connection.description.incarnation)
                raise
            return

    async def _compute(self, generation: Generation) -> WorkerConnection:
        """Compute a prefix, unless it is cached, and return the connection to the worker that has it."""
        worker_id = ""
        async with aclosing(self._pipeline.generate(generation)) as deltas:
            async for delta in deltas:
                if delta.served_by is not None:
                    worker_id = delta.served_by.prefill_worker or delta.served_by.decode_worker
        for connection in self._pool.reached:
            if connection.description is not None and connection.description.worker_id == worker_id:
                return connection
        raise WorkerLost(f"worker {worker_id}, which computed the prefix, was lost")
