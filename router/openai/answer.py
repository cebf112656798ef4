"""From the news of a request's choices to its HTTP answer, streamed or whole; what chat and completions share."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

import orjson

from baton.protos.common_pb2 import PositionLogprobs, ServedBy
from baton.router.generation import ChoiceDelta, Generation, cached_tokens
from baton.router.limits import check_logprobs
from baton.router.openai.disconnect import ClientGone
from baton.router.openai.errors import describe
from baton.router.openai.exchange import Exchange
from baton.router.openai.fields import GenerationFields, StreamOptions
from baton.router.openai.usage import Usage
from baton.router.pipeline import Pipeline
from baton.router.stream_merge import StreamMerge
from baton.rpc.names import MAX_NAME_CHARS, is_name

DONE = b"data: [DONE]\n\n"
MAX_INLINE_SIZE = 4096  # tokens and logprobs of an answer that is worded at once; a larger one in a thread

News = AsyncGenerator[ChoiceDelta, None]


@dataclass(slots=True)
class WholeChoice:
    """All of one choice."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    text_offsets: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def add(self, delta: ChoiceDelta) -> None:
        """Appends news."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.text_offsets += delta.text_offsets
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.stop_reason = delta.stop_reason if delta.stop_reason is not None else self.stop_reason

    def size(self) -> int:
        """How much there is to word: tokens, and candidates with logprobs."""
        positions = (*self.logprobs, *self.prompt_logprobs)
        return len(self.token_ids) + sum(1 + len(position.top) for position in positions)


class AnswerShape(Protocol):
    """How an API words an answer."""

    def chunk(self, delta: ChoiceDelta, usage: dict[str, object] | None) -> bytes:
        """Events for news of a choice, its opening ones included; empty if there is nothing to tell."""
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

    The client is charged for the prompts at once, and for what was generated at the end, however it ends.
    """
    usage = Usage(sum(len(generation.token_ids) for generation in generations))
    exchange.client.charge(usage.uncharged())
    check_logprobs(generations, whole=not fields.stream)
    try:
        async with aclosing(_all_news(pipeline, generations, fields.n)) as news:
            if fields.stream:
                await _answer_events(exchange, news, usage, fields, shape)
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
        choices.setdefault(delta.index, WholeChoice(delta.index)).add(delta)
        served_by = served_by or delta.served_by
    exchange.client.charge(usage.uncharged())  # the answer's head says what is left

    def body() -> bytes:
        return orjson.dumps(shape.whole([choices[index] for index in sorted(choices)], usage.body()))

    size = sum(map(WholeChoice.size, choices.values()))
    # Thousands of logprobs take long to word, and other clients wait for their tokens.
    worded = body() if size <= MAX_INLINE_SIZE else await asyncio.to_thread(body)
    await exchange.answer(200, worded, served_headers(served_by))


async def _answer_events(
    exchange: Exchange, news: News, usage: Usage, fields: GenerationFields, shape: AnswerShape
) -> None:
    options = fields.stream_options or StreamOptions()

    def event(delta: ChoiceDelta) -> bytes:
        usage.add(delta, fields.n)
        return shape.chunk(delta, usage.body() if options.continuous_usage_stats else None)

    opening: list[bytes] = []
    async for delta in news:
        opening.append(event(delta))
        if delta.served_by is not None or delta.finish_reason is not None:
            break
    await exchange.begin_events(served_headers(delta.served_by if opening else None))
    try:
        await exchange.send_events(b"".join(opening))
        async for delta in news:
            if chunk := event(delta):
                await exchange.send_events(chunk)
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
