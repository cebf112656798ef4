"""The HTTP response of chat and completion requests, streamed or whole."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol
from urllib.parse import quote

import orjson

from baton.protos.common_pb2 import ServedBy
from baton.router.generation import CompletionDelta, Generation, cached_tokens
from baton.router.http.event_stream import EventIds, EventStream
from baton.router.http.exchange import ClientGone, Exchange
from baton.router.http.headers import RESPONSE_HEADERS, position_of
from baton.router.limits import check_logprobs
from baton.router.openai.fields import GenerationFields, StreamOptions
from baton.router.pipeline import Pipeline
from baton.router.resumption.resumption import OutputTally
from baton.router.stream_merge import StreamMerge
from baton.settings.names import MAX_NAME_CHARS, is_name


class Usage:
    """Token counts of one response, over all its prompts and completions."""

    def __init__(self, num_prompt_tokens: int, num_seen: int = 0, with_reasoning: bool = False) -> None:
        """`num_seen`: output tokens that the client of a resumed request was charged for, like the prompt.

        `with_reasoning`: the tokens of the model's reasoning are also counted separately.
        """
        self._num_prompt_tokens = num_prompt_tokens
        self._num_seen = num_seen
        self._num_completion_tokens = num_seen
        self._num_charged = num_prompt_tokens + num_seen if num_seen else 0
        self._num_reasoning_tokens = 0
        self._with_reasoning = with_reasoning
        self._cached_tokens: dict[int, int] = {}  # by prompt, of its first completion

    def add(self, delta: CompletionDelta, num_completions: int) -> None:
        """Count a delta; `num_completions`: completions of each prompt."""
        self._num_completion_tokens += len(delta.token_ids)
        self._num_reasoning_tokens += delta.num_reasoning_tokens
        if delta.served_by is not None and delta.index % num_completions == 0:
            self._cached_tokens.setdefault(delta.index // num_completions, cached_tokens(delta.served_by))

    def charge_again(self, generations: Sequence[Generation]) -> None:
        """Charge again for tokens of a resumed request that are recomputed, if the client was charged for them."""
        if self._num_seen:
            self._num_charged -= sum(generation.num_recomputed for generation in generations)

    def add_unsent(self, generations: Sequence[Generation]) -> None:
        """Count the output that was generated for a response that ends early, even if it is not sent."""
        num_new = sum(each.generated.num_tokens - each.num_recomputed_output for each in generations)
        self._num_completion_tokens = max(self._num_completion_tokens, self._num_seen + num_new)

    def uncharged(self) -> int:
        """Return the number of tokens since the last call, and count them as charged."""
        num_tokens = self._num_prompt_tokens + self._num_completion_tokens
        num_new, self._num_charged = num_tokens - self._num_charged, num_tokens
        return num_new

    def body(self) -> dict[str, object]:
        """Return the usage object."""
        body: dict[str, object] = {
            "prompt_tokens": self._num_prompt_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_completion_tokens,
            "completion_tokens": self._num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens.values())},
        }
        if self._with_reasoning:
            body["completion_tokens_details"] = {"reasoning_tokens": self._num_reasoning_tokens}
        return body


MIXED_QUANTIZATION = "x-baton-mixed-quantization"
STORED_TOKENS = "x-baton-stored-tokens"  # of the cached ones, as "host=256, disk=64"
MAX_CACHED_NAMES = 4096  # of workers, for headers: each response has a few
DONE = b"data: [DONE]\n\n"
MAX_INLINE_SIZE = 4096  # tokens and logprobs of a response encoded on the event loop; larger ones use a thread

Deltas = AsyncGenerator[CompletionDelta, None]


@dataclass(slots=True)
class WholeCompletion(CompletionDelta):
    """The whole output of one completion."""

    def size(self) -> int:
        """Return the number of tokens and of candidates with logprobs."""
        positions = (*self.logprobs, *self.prompt_logprobs)
        return len(self.token_ids) + sum(1 + len(position.top) for position in positions)


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A whole response that is not JSON alone."""

    content: bytes
    headers: Mapping[str, str]  # among them the content type


class ResponseShape(Protocol):
    """Encoder of an API's responses."""

    def chunk(self, delta: CompletionDelta, usage: dict[str, object] | None) -> bytes:
        """Return the events of a delta, including a completion's opening events; empty if there is nothing to send."""
        ...

    def resume(self, index: int) -> None:
        """Omit the opening events of a completion: the client has them."""
        ...

    def end(self, usage: dict[str, object] | None) -> bytes:
        """Return the last events of a stream. `usage`: if the client wants it."""
        ...

    def failure(self, error: Exception) -> bytes:
        """Return the last event of a stream that fails."""
        ...

    def whole(
        self, completions: Sequence[WholeCompletion], usage: dict[str, object]
    ) -> dict[str, object] | EncodedBody:
        """Return the body of a whole response. Called in a thread if it is large."""
        ...


def command_id(request_id: str) -> str:
    """Return a unique id for a request at the workers, which contains the client's id."""
    return f"{request_id[:64]}-{secrets.token_hex(4)}"


async def send_completions(
    exchange: Exchange,
    pipeline: Pipeline,
    generations: Sequence[Generation],
    fields: GenerationFields,
    shape: ResponseShape,
) -> None:
    """Run the generations and send the response, with its headers once the workers are known.

    Returns when all is generated: the exchange delivers the rest to a lagging client.
    The client is charged for the prompts at once, and for the output at the end, also after an error. Then it is
    charged for output that it does not get, too: that of a whole response, or of a resumed one before its position.
    """
    position = position_of(exchange.resumption, len(generations) * fields.n, fields.stream)
    num_seen = 0 if position is None else sum(position.counts)
    rules = generations[0].request.output_rules
    with_reasoning = rules is not None and rules.has_reasoning
    usage = Usage(sum(len(generation.token_ids) for generation in generations), num_seen, with_reasoning)
    exchange.client.charge(usage.uncharged())
    check_logprobs(generations, whole=not fields.stream)
    try:
        if position is not None:
            generations = await pipeline.recall.resumed(generations, position)
            usage.charge_again(generations)
            for index, count in enumerate(position.counts):
                if count:
                    shape.resume(index)
        deltas = _all_deltas(pipeline, generations, fields.n)
        ids: EventIds | None = None
        if exchange.resumption is not None:
            tally = OutputTally(len(generations) * fields.n)
            ids = EventIds(tally)
            if position is not None:
                deltas = pipeline.recall.checked(deltas, position, generations, tally)
        async with aclosing(deltas):
            if fields.stream:
                await _send_stream(exchange, deltas, usage, fields, shape, ids)
            else:
                await _send_whole(exchange, deltas, usage, fields, shape)
    except BaseException:
        usage.add_unsent(generations)
        raise
    finally:
        exchange.client.charge(usage.uncharged())


async def _send_whole(
    exchange: Exchange, deltas: Deltas, usage: Usage, fields: GenerationFields, shape: ResponseShape
) -> None:
    completions: dict[int, WholeCompletion] = {}
    served_by: ServedBy | None = None
    mixed: dict[str, None] = {}  # in the order of their completions
    async for delta in deltas:
        usage.add(delta, fields.n)
        completions.setdefault(delta.index, WholeCompletion(delta.index)).extend(delta)
        served_by = served_by or delta.served_by
        if delta.served_by is not None:
            mixed |= dict.fromkeys(mixed_quantization_headers(delta.served_by).values())
    exchange.client.charge(usage.uncharged())  # before the headers, which have the remaining rate

    def body() -> EncodedBody:
        whole = shape.whole([completions[index] for index in sorted(completions)], usage.body())
        return whole if isinstance(whole, EncodedBody) else EncodedBody(orjson.dumps(whole), {})

    size = sum(map(WholeCompletion.size, completions.values()))
    # Encoding thousands of logprobs on the event loop would delay other clients.
    encoded = body() if size <= MAX_INLINE_SIZE else await asyncio.to_thread(body)
    headers = _headers(exchange, served_by)
    if mixed:
        headers = {**headers, MIXED_QUANTIZATION: ", ".join(mixed)}
    await exchange.respond(200, encoded.content, {**headers, **encoded.headers})


async def _send_stream(
    exchange: Exchange,
    deltas: Deltas,
    usage: Usage,
    fields: GenerationFields,
    shape: ResponseShape,
    ids: EventIds | None,
) -> None:
    options = fields.stream_options or StreamOptions()

    def event(delta: CompletionDelta) -> bytes:
        events = shape.chunk(delta, usage.body() if options.continuous_usage_stats else None)
        return events if ids is None else ids.stamped(events, delta)

    opening: list[bytes] = []
    async for delta in deltas:
        usage.add(delta, fields.n)
        opening.append(event(delta))
        if delta.served_by is not None or delta.finish_reason is not None:
            break
    stream = EventStream(exchange, event)
    await exchange.begin_events(_headers(exchange, delta.served_by if opening else None), stream)
    try:
        await exchange.send_events(b"".join(opening))
        async for delta in deltas:
            usage.add(delta, fields.n)
            await stream.add(delta)
    except ClientGone:
        raise
    except Exception as error:  # the headers have been sent, so the error goes into the stream
        if exchange.trace is not None:
            exchange.trace.note_failure(error)
        await exchange.send_events(stream.take() + shape.failure(error), last=True)
        return
    end = stream.take() + shape.end(usage.body() if options.include_usage else None)  # waiting deltas are encoded first
    await exchange.send_events(end, last=True)


def _all_deltas(pipeline: Pipeline, generations: Sequence[Generation], num_completions: int) -> Deltas:
    """Return the deltas of all prompts' completions, which are numbered consecutively."""
    if len(generations) == 1:
        return pipeline.generate(generations[0])
    return _merged(pipeline, generations, num_completions)


async def _merged(pipeline: Pipeline, generations: Sequence[Generation], num_completions: int) -> Deltas:
    async with StreamMerge[CompletionDelta]() as merged:
        for place, generation in enumerate(generations):
            await merged.add(_renumbered(pipeline.generate(generation), place * num_completions))
        async for delta in merged:
            yield delta


async def _renumbered(deltas: Deltas, first: int) -> Deltas:
    async with aclosing(deltas):
        async for delta in deltas:
            delta.index += first
            yield delta


def _headers(exchange: Exchange, served_by: ServedBy | None) -> Mapping[str, str]:
    headers = served_headers(served_by)
    return headers if exchange.resumption is None else {**headers, **RESPONSE_HEADERS}


def served_headers(served_by: ServedBy | None) -> dict[str, str]:
    """Return the response headers that name the workers, those of the first completion that reported them."""
    if served_by is None:
        return {}
    return {
        "x-baton-prefill": _header_name(served_by.prefill_worker),
        "x-baton-decode": _header_name(served_by.decode_worker),
        "x-baton-kv-transport": _header_name(served_by.kv_transport),
        "x-baton-cached-tokens": str(cached_tokens(served_by)),
        "x-baton-handed-over-tokens": str(served_by.handed_over_tokens),
        **stored_tokens_headers(served_by),
        **mixed_quantization_headers(served_by),
    }


def stored_tokens_headers(served_by: ServedBy) -> dict[str, str]:
    """Return the header that names the stores from which prompt tokens were fetched; empty if none were."""
    tiers = [f"{quote(name)}={num}" for name, num in sorted(served_by.stored_tokens.items()) if num]
    return {STORED_TOKENS: ", ".join(tiers)} if tiers else {}


def mixed_quantization_headers(served_by: ServedBy) -> dict[str, str]:
    """Return the header that names other quantizations that computed KV of a completion; empty if none did."""
    if not served_by.mixed_quantization:
        return {}
    return {MIXED_QUANTIZATION: quote(served_by.mixed_quantization[:MAX_NAME_CHARS], safe="->,")}


def _header_name(name: str) -> str:
    """Return a worker's name for a header."""
    return _encoded_name(name[: MAX_NAME_CHARS + 1])  # as invalid as the whole name, and bounds the cache


@lru_cache(maxsize=MAX_CACHED_NAMES)
def _encoded_name(name: str) -> str:
    """Return a valid name unchanged; otherwise truncate it and percent-encode it (RFC 3986)."""
    return name if not name or is_name(name) else quote(name[:MAX_NAME_CHARS], safe="")


def json_fragment(body: dict[str, object]) -> orjson.Fragment:
    """Serialise a large part of a body separately, so that other threads can take the GIL between two parts."""
    return orjson.Fragment(orjson.dumps(body))
