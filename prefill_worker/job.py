"""One prompt on its way through a prefill worker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from baton.engine.outputs import RequestOutput, SampledToken
from baton.engine.request import Request, RequestId
from baton.process.heartbeat import beats_until
from baton.protos import worker_pb2
from baton.rpc.sampling import logprobs_to_proto
from baton.worker.announcement import Announcements
from baton.worker.prefill_request import engine_request


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """What a step did for the prompt, and the monotonic clock when it was done."""

    output: RequestOutput
    computed_at_s: float


@dataclass(slots=True, eq=False)
class PrefillJob:
    """Turns a prompt's steps into the events of its call."""

    request: Request
    num_caller_tokens: int  # whose KV the caller has already
    prefix_source: worker_pb2.PeerWorker
    num_pulled_tokens: int = 0  # pulled from the prefix source
    pull: "asyncio.Task[None] | None" = None
    steps: "asyncio.Queue[PrefillStep]" = field(default_factory=asyncio.Queue)  # at most one for each chunk

    @classmethod
    def of(cls, message: worker_pb2.PrefillRequest, request_id: RequestId) -> "PrefillJob":
        """The job that a message asks for: its tokens, and one more."""
        return cls(engine_request(message, request_id), message.num_cached_tokens, message.prefix_source)

    async def events(
        self, announcements: Announcements, block_size: int, is_stuck: Callable[[], bool]
    ) -> AsyncIterator[worker_pb2.PrefillEvent]:
        """The prompt's events from its first step to its last block. What a step did goes before older checksums.

        `is_stuck`: whether the engine does not step; while it does, empty events say so.
        """
        num_announced = self.num_caller_tokens // block_size
        is_last = False
        while not is_last or announcements.has_unchecked:
            if announcements.has_unchecked and self.steps.empty():
                yield worker_pb2.PrefillEvent(checksums=await announcements.next_checksums())
                continue
            getting = asyncio.ensure_future(self.steps.get())
            try:
                async for _ in beats_until(getting, is_stuck):
                    yield worker_pb2.PrefillEvent()
                step = await getting
            finally:
                getting.cancel()
            sampled, num_ready = step.output.sampled, step.output.num_computed_tokens // block_size
            if sampled is not None:
                is_last, num_ready = True, len(self.request.block_table)
            blocks = self.request.block_table[num_announced:num_ready]
            yield worker_pb2.PrefillEvent(
                blocks=announcements.announce(num_announced, blocks, step.computed_at_s),
                prompt_logprobs=map(logprobs_to_proto, step.output.prompt_logprobs),
                first_token=self._first_token(sampled) if sampled is not None else None,
            )
            num_announced = max(num_announced, num_ready)

    def _first_token(self, sampled: SampledToken) -> worker_pb2.FirstToken:
        return worker_pb2.FirstToken(
            token_id=sampled.token_id,
            logprobs=logprobs_to_proto(sampled.logprobs) if sampled.logprobs else None,
            num_cached_tokens=self.request.num_cached_tokens + self.num_pulled_tokens,
            num_pulled_tokens=self.num_pulled_tokens,
        )
