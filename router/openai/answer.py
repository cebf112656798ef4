"""From the news of a request's choices to its HTTP answer, streamed or whole; what chat and completions share."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response

from protos.common_pb2 import PositionLogprobs, ServedBy
from router.generation import ChoiceDelta, Generation, cached_tokens
from router.openai.disconnect import ClientGone, until_disconnect
from router.openai.errors import describe
from router.openai.event_stream import EventStream
from router.openai.fields import GenerationFields, StreamOptions
from router.openai.usage import Usage
from router.pipeline import Pipeline
from router.stream_merge import StreamMerge

DONE = b"data: [DONE]\n\n"


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


class AnswerShape(Protocol):
    """How an API words an answer."""

    def chunk(self, delta: ChoiceDelta, usage: dict[str, object] | None) -> bytes:
        """Events for news of a choice, its opening ones included; empty if there is nothing to tell."""
        ...

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        """The event that closes a stream with its usage."""
        ...

    def whole(self, choices: Sequence[WholeChoice], usage: dict[str, object]) -> dict[str, object]:
        """The body of a whole answer; called in a thread."""
        ...


def new_request_id(http: Request) -> str:
    """An id for a request's work, unlike any other's, with the client's own in it."""
    return f"{http.scope['state']['request_id'][:64]}-{secrets.token_hex(4)}"


async def while_connected(http: Request, serve: Callable[[AsyncExitStack], Awaitable[Response]]) -> Response:
    """What `serve` answers, unless the client goes away before. The stack holds what the answer needs to its end."""

    async def work() -> Response:
        async with AsyncExitStack() as held:
            return await serve(held)

    try:
        return await until_disconnect(http.receive, work())
    except ClientGone:
        return Response(status_code=499)


async def answer(
    pipeline: Pipeline,
    generations: Sequence[Generation],
    fields: GenerationFields,
    shape: AnswerShape,
    held: AsyncExitStack,
) -> Response:
    """Runs the generations and answers, once it is known who serves them; a stream takes over what is `held`."""
    news = await held.enter_async_context(aclosing(_all_news(pipeline, generations, fields.num_choices)))
    usage = Usage(sum(len(generation.token_ids) for generation in generations))
    if not fields.stream:
        return await _whole(news, usage, fields, shape)
    head = await _head(news)
    events = _events(head, news, usage, fields, shape)
    return EventStream(events, served_headers(head[-1].served_by if head else None), held.pop_all())


async def _whole(
    news: AsyncGenerator[ChoiceDelta, None], usage: Usage, fields: GenerationFields, shape: AnswerShape
) -> Response:
    choices: dict[int, WholeChoice] = {}
    served_by: ServedBy | None = None
    async for delta in news:
        usage.add(delta, fields.num_choices)
        choices.setdefault(delta.index, WholeChoice(delta.index)).add(delta)
        served_by = served_by or delta.served_by

    def body() -> bytes:
        return orjson.dumps(shape.whole([choices[index] for index in sorted(choices)], usage.body()))

    # Thousands of logprobs take long to word, and other clients wait for their tokens.
    return Response(await asyncio.to_thread(body), headers=served_headers(served_by), media_type="application/json")


async def _head(news: AsyncGenerator[ChoiceDelta, None]) -> list[ChoiceDelta]:
    """The news up to the first that tells who serves the request, for the headers."""
    head: list[ChoiceDelta] = []
    async for delta in news:
        head.append(delta)
        if delta.served_by is not None or delta.finish_reason is not None:
            break
    return head


async def _events(
    head: list[ChoiceDelta],
    news: AsyncGenerator[ChoiceDelta, None],
    usage: Usage,
    fields: GenerationFields,
    shape: AnswerShape,
) -> AsyncGenerator[bytes, None]:
    options = fields.stream_options or StreamOptions()

    def event(delta: ChoiceDelta) -> bytes:
        usage.add(delta, fields.num_choices)
        return shape.chunk(delta, usage.body() if options.continuous_usage_stats else None)

    try:
        opening = b"".join(map(event, head))
        if opening:
            yield opening
        async for delta in news:
            if chunk := event(delta):
                yield chunk
    except Exception as error:  # the headers are out: the client is told in the stream
        yield b"data: " + orjson.dumps(describe(error)[1]) + b"\n\n"
        return
    if options.include_usage:
        yield shape.usage_chunk(usage.body())
    yield DONE


async def _all_news(
    pipeline: Pipeline, generations: Sequence[Generation], num_choices: int
) -> AsyncGenerator[ChoiceDelta, None]:
    """News of all prompts' choices; choices are numbered through."""
    if len(generations) == 1:
        async with aclosing(pipeline.generate(generations[0])) as single:
            async for delta in single:
                yield delta
        return
    async with StreamMerge[ChoiceDelta]() as merged:
        for place, generation in enumerate(generations):
            merged.add(_renumbered(pipeline.generate(generation), place * num_choices))
        async for delta in merged:
            yield delta


async def _renumbered(news: AsyncGenerator[ChoiceDelta, None], first: int) -> AsyncGenerator[ChoiceDelta, None]:
    async with aclosing(news):
        async for delta in news:
            delta.index += first
            yield delta


def served_headers(served_by: ServedBy | None) -> dict[str, str]:
    """How the request was served; of several prompts or choices, the one that came first."""
    if served_by is None:
        return {}
    return {
        "x-baton-prefill": served_by.prefill_worker,
        "x-baton-decode": served_by.decode_worker,
        "x-baton-kv-transport": served_by.kv_transport,
        "x-baton-cached-tokens": str(cached_tokens(served_by)),
        "x-baton-handed-over-tokens": str(served_by.handed_over_tokens),
    }


def apart(body: dict[str, object]) -> orjson.Fragment:
    """A large part of a body, serialised by itself: between two of them other threads get their turn."""
    return orjson.Fragment(orjson.dumps(body))
