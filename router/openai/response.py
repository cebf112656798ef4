"""From the news of a request's choices to its HTTP answer, streamed or whole; what chat and completions share."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import orjson

from baton.protos.common_pb2 import ServedBy
from baton.router.generation import ChoiceDelta, Generation, cached_tokens
from baton.router.http.event_stream import EventIds, EventStream
from baton.router.http.exchange import ClientGone, Exchange
from baton.router.limits import check_logprobs
from baton.router.openai.errors import describe
from baton.router.openai.fields import GenerationFields, StreamOptions
from baton.router.openai.headers import RESPONSE_HEADERS, position_of
from baton.router.pipeline import Pipeline
from baton.router.resumption.resumption import OutputTally
from baton.router.stream_merge import StreamMerge
from baton.settings.names import MAX_NAME_CHARS, is_name


class Usage:
    """Counts the tokens of one answer, over all its prompts and choices."""

    def __init__(self, num_prompt_tokens: int, num_seen: int = 0) -> None:
        """`num_seen`: output tokens that the client of a resumed request has, and was charged for, with the prompt."""
        self._num_prompt_tokens = num_prompt_tokens
        self._num_completion_tokens = num_seen
        self._num_charged = num_prompt_tokens + num_seen if num_seen else 0
        self._cached_tokens: dict[int, int] = {}  # by prompt, of its first choice

    def add(self, delta: ChoiceDelta, num_choices: int) -> None:
        """Counts news; `num_choices` is that of each prompt."""
        self._num_completion_tokens += len(delta.token_ids)
        if delta.served_by is not None and delta.index % num_choices == 0:
            self._cached_tokens.setdefault(delta.index // num_choices, cached_tokens(delta.served_by))

    def charge_again(self, num_tokens: int) -> None:
        """Charge for tokens of which the client has paid for an earlier attempt: they are computed again."""
        self._num_charged -= num_tokens

    def uncharged(self) -> int:
        """The tokens that no earlier call has told."""
        num_tokens = self._num_prompt_tokens + self._num_completion_tokens
        num_new, self._num_charged = num_tokens - self._num_charged, num_tokens
        return num_new

    def body(self) -> dict[str, object]:
        """The usage object."""
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_completion_tokens,
            "completion_tokens": self._num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens.values())},
        }


DONE = b"data: [DONE]\n\n"
MAX_INLINE_SIZE = 4096  # tokens and logprobs of an answer that is worded at once; a larger one in a thread

News = AsyncGenerator[ChoiceDelta, None]


@dataclass(slots=True)
class WholeChoice(ChoiceDelta):
    """All of one choice."""

    def size(self) -> int:
        """How much there is to word: tokens, and candidates with logprobs."""
        positions = (*self.logprobs, *self.prompt_logprobs)
        return len(self.token_ids) + sum(1 + len(position.top) for position in positions)


class AnswerShape(Protocol):
    """How an API words an answer."""

    def chunk(self, delta: ChoiceDelta, usage: dict[str, object] | None) -> bytes:
        """Events for news of a choice, its opening ones included; empty if there is nothing to tell."""
        ...

    def resume(self, index: int) -> None:
        """The client has the opening events of a choice."""
        ...

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        """The event that closes a stream with its usage."""
        ...

    def whole(self, choices: Sequence[WholeChoice], usage: dict[str, object]) -> dict[str, object]:
        """The body of a whole answer; called in a thread if there is much of it."""
        ...


def command_id(request_id: str) -> str:
    """An id for a request's work, unlike any other's, with the client's own in it."""
    return f"{request_id[:64]}-{secrets.token_hex(4)}"


async def answer(
    exchange: Exchange,
    pipeline: Pipeline,
    generations: Sequence[Generation],
    fields: GenerationFields,
    shape: AnswerShape,
) -> None:
    """Runs the generations and answers, with the head sent once it is known who serves them.

    Returns when all is generated: the exchange delivers the rest to a client that is behind.
    The client is charged for the prompts at once, and for what was generated at the end, however it ends.
    """
    position = position_of(exchange.resumption, len(generations) * fields.n, fields.stream)
    num_seen = 0 if position is None else sum(position.counts)
    usage = Usage(sum(len(generation.token_ids) for generation in generations), num_seen)
    exchange.client.charge(usage.uncharged())
    check_logprobs(generations, whole=not fields.stream)
    try:
        if position is not None:
            generations = await pipeline.recall.resumed(generations, position)
            usage.charge_again(sum(generation.num_recomputed for generation in generations))
            for index, count in enumerate(position.counts):
                if count:
                    shape.resume(index)
        all_news = _all_news(pipeline, generations, fields.n)
        tally = OutputTally(len(generations) * fields.n)
        if position is not None:
            all_news = pipeline.recall.checked(all_news, position, generations, tally)
        async with aclosing(all_news) as news:
            if fields.stream:
                ids = None if exchange.resumption is None else EventIds(tally)
                await _answer_events(exchange, news, usage, fields, shape, ids)
            else:
                await _answer_whole(exchange, news, usage, fields, shape)
    finally:
        exchange.client.charge(usage.uncharged())


async def _answer_whole(
    exchange: Exchange, news: News, usage: Usage, fields: GenerationFields, shape: AnswerShape
) -> None:
    choices: dict[int, WholeChoice] = {}
    served_by: ServedBy | None = None
    async for delta in news:
        usage.add(delta, fields.n)
        choices.setdefault(delta.index, WholeChoice(delta.index)).extend(delta)
        served_by = served_by or delta.served_by
    exchange.client.charge(usage.uncharged())  # the answer's head says what is left

    def body() -> bytes:
        return orjson.dumps(shape.whole([choices[index] for index in sorted(choices)], usage.body()))

    size = sum(map(WholeChoice.size, choices.values()))
    # Thousands of logprobs take long to word, and other clients wait for their tokens.
    worded = body() if size <= MAX_INLINE_SIZE else await asyncio.to_thread(body)
    await exchange.answer(200, worded, _headers(exchange, served_by))


async def _answer_events(
    exchange: Exchange,
    news: News,
    usage: Usage,
    fields: GenerationFields,
    shape: AnswerShape,
    ids: EventIds | None,
) -> None:
    options = fields.stream_options or StreamOptions()

    def event(delta: ChoiceDelta) -> bytes:
        events = shape.chunk(delta, usage.body() if options.continuous_usage_stats else None)
        return events if ids is None else ids.stamped(events, delta)

    opening: list[bytes] = []
    async for delta in news:
        usage.add(delta, fields.n)
        opening.append(event(delta))
        if delta.served_by is not None or delta.finish_reason is not None:
            break
    stream = EventStream(exchange, event)
    await exchange.begin_events(_headers(exchange, delta.served_by if opening else None), stream)
    try:
        await exchange.send_events(b"".join(opening))
        async for delta in news:
            usage.add(delta, fields.n)
            await stream.add(delta)
    except ClientGone:
        raise
    except Exception as error:  # the headers are out: the client is told in the stream
        await exchange.send_events(b"data: " + orjson.dumps(describe(error)[1]) + b"\n\n", last=True)
        return
    await exchange.send_events((shape.usage_chunk(usage.body()) if options.include_usage else b"") + DONE, last=True)


def _all_news(pipeline: Pipeline, generations: Sequence[Generation], num_choices: int) -> News:
    """News of all prompts' choices; choices are numbered through."""
    if len(generations) == 1:
        return pipeline.generate(generations[0])
    return _merged(pipeline, generations, num_choices)


async def _merged(pipeline: Pipeline, generations: Sequence[Generation], num_choices: int) -> News:
    async with StreamMerge[ChoiceDelta]() as merged:
        for place, generation in enumerate(generations):
            merged.add(_renumbered(pipeline.generate(generation), place * num_choices))
        async for delta in merged:
            yield delta


async def _renumbered(news: News, first: int) -> News:
    async with aclosing(news):
        async for delta in news:
            delta.index += first
            yield delta


def _headers(exchange: Exchange, served_by: ServedBy | None) -> Mapping[str, str]:
    headers = served_headers(served_by)
    return headers if exchange.resumption is None else {**headers, **RESPONSE_HEADERS}


def served_headers(served_by: ServedBy | None) -> dict[str, str]:
    """How the request was served; of several prompts or choices, the one that came first."""
    if served_by is None:
        return {}
    return {
        "x-baton-prefill": _header_name(served_by.prefill_worker),
        "x-baton-decode": _header_name(served_by.decode_worker),
        "x-baton-kv-transport": _header_name(served_by.kv_transport),
        "x-baton-cached-tokens": str(cached_tokens(served_by)),
        "x-baton-handed-over-tokens": str(served_by.handed_over_tokens),
    }


def _header_name(name: str) -> str:
    """A name that a worker gave, as a header has it: what is none is cut and percent-encoded (RFC 3986)."""
    return name if not name or is_name(name) else quote(name[:MAX_NAME_CHARS], safe="")


def apart(body: dict[str, object]) -> orjson.Fragment:
    """A large part of a body, serialised by itself: between two of them other threads get their turn."""
    return orjson.Fragment(orjson.dumps(body))
