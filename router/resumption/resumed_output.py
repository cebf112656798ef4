"""The output of a completion of which the client has the beginning."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from baton.protos.common_pb2 import ServedBy
from baton.protos.worker_pb2 import RequestDelta
from baton.router.generation import CompletionDelta
from baton.router.resumption.resumption import CompletionStart

SLICE_TOKENS = 64  # of a remembered output that are detokenised in one turn of the event loop


class Output(Protocol):
    """Converter from tokens to text, until the completion finishes."""

    @property
    def finished(self) -> bool:
        """Whether a stop string or the worker has ended it."""
        ...

    def push(self, delta: RequestDelta) -> CompletionDelta:
        """Convert a worker's delta to the client's."""
        ...


class ResumedOutput:
    """Output that advances the text state past the tokens that the client has, and returns what follows."""

    def __init__(self, output: Output, start: CompletionStart, num_prompt_tokens: int) -> None:
        self._output = output
        self._num_left = start.num_seen  # tokens that the client has and that have not been pushed yet
        self._num_prompt_tokens = num_prompt_tokens

    @property
    def finished(self) -> bool:
        """Whether a stop string or the worker has ended it."""
        return self._output.finished

    def push(self, delta: RequestDelta) -> CompletionDelta:
        """Convert a worker's delta to the client's. Tokens that the client has are only in `seen`."""
        if delta.HasField("served_by"):
            _exclude_output(delta.served_by, self._num_prompt_tokens)
        if not self._num_left:
            return self._output.push(delta)
        seen = list(delta.token_ids[: self._num_left])
        self._num_left -= len(seen)
        num_new = len(delta.token_ids) - len(seen)
        if num_new:
            output = self._output.push(RequestDelta(token_ids=seen, prompt_logprobs=delta.prompt_logprobs))
        else:
            output = self._output.push(delta)
        if num_new and not self._output.finished:  # a stop string may end it; workers do not check them
            del delta.token_ids[: len(seen)]
            del delta.logprobs[: len(seen)]
            num_reasoning_tokens = output.num_reasoning_tokens
            output = self._output.push(delta)
            output.num_reasoning_tokens += num_reasoning_tokens
        else:
            output.text, output.token_ids, output.text_offsets, output.logprobs = "", [], [], []
            output.parts = None if output.parts is None else []
        output.seen = seen
        return output


async def recalled_first(
    start: CompletionStart, rest: AsyncGenerator[RequestDelta, None]
) -> AsyncGenerator[RequestDelta, None]:
    """Yield the remembered output of a completion in slices, and then the rest if it is not complete.

    The event loop has a turn after each slice: remembered outputs are long, and their tokens are all there already.
    """
    async with aclosing(rest):
        num_tokens = max(len(start.token_ids), bool(start.finish_reason))  # an end without tokens is yielded, too
        for first in range(0, num_tokens, SLICE_TOKENS):
            token_ids = start.token_ids[first : first + SLICE_TOKENS]
            is_last = first + SLICE_TOKENS >= len(start.token_ids)
            reason = start.finish_reason if is_last else 0
            yield RequestDelta(token_ids=token_ids, finish_reason=reason)  # type: ignore[arg-type]  # a number of the enum
            await asyncio.sleep(0)
        if not start.finish_reason:
            async for delta in rest:
                yield delta


def _exclude_output(served_by: ServedBy, num_prompt_tokens: int) -> None:
    """Limit the cached tokens to the prompt's: a worker that continues a completion has output in its cache, too."""
    served_by.decode_cached_tokens = min(served_by.decode_cached_tokens, num_prompt_tokens)
    served_by.prefill_cached_tokens = min(served_by.prefill_cached_tokens, num_prompt_tokens)
    num_left = num_prompt_tokens - served_by.decode_cached_tokens
    served_by.prefix_pulled_tokens = min(served_by.prefix_pulled_tokens, num_left)
    num_left -= served_by.prefix_pulled_tokens
    for tier, num_tokens in served_by.stored_tokens.items():
        served_by.stored_tokens[tier] = min(num_tokens, num_left)
        num_left -= served_by.stored_tokens[tier]
