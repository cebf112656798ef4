"""The output of a completion of which the client has the beginning."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence

import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos import common_pb2
from baton.protos.common_pb2 import ServedBy
from baton.protos.worker_pb2 import RequestDelta
from baton.router.generation import CompletionDelta, Generation, GenerationRequest
from baton.router.http.event_stream import EventIds
from baton.router.output.completion import CompletionOutput
from baton.router.resumption.resumed_output import SLICE_TOKENS, ResumedOutput, recalled_first
from baton.router.resumption.resumption import CompletionStart, OutputTally
from baton.router.text.tokenizer import Tokenizer
from tests.unit.router.rigs.running_router import MODEL

TEXT = "one two!three four 你好 five"
LENGTH = common_pb2.FINISH_REASON_LENGTH


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    tokenizer = Tokenizer(MODEL)
    yield tokenizer
    tokenizer.close()


def output(tokenizer: Tokenizer, **options: object) -> CompletionOutput:
    request = GenerationRequest(request_id="r", prompt=[300], sampling=SamplingParams(), **options)  # type: ignore[arg-type]
    return CompletionOutput(0, Generation(request, [300], SamplingParams(logprobs=0)), tokenizer)


def pushed(made: CompletionOutput | ResumedOutput, token_ids: Sequence[int], size: int) -> list[CompletionDelta]:
    """Push the tokens, `size` at a time, until the completion finishes; return the deltas."""
    news: list[CompletionDelta] = []
    for start in range(0, len(token_ids), size):
        part = token_ids[start : start + size]
        delta = RequestDelta(token_ids=part)
        if start + size >= len(token_ids):
            delta.finish_reason = LENGTH
        news.append(made.push(delta))
        if made.finished:
            break
    return news


@pytest.mark.parametrize("stop", [(), ("three", "zz"), ("two!th", "five")])
@pytest.mark.parametrize("size", [1, 3, 100])
async def test_a_resumed_output_continues_as_the_original(
    tokenizer: Tokenizer, stop: tuple[str, ...], size: int
) -> None:
    token_ids = await tokenizer.encode(TEXT, add_special_tokens=False)
    expected = pushed(output(tokenizer, stop=stop), token_ids, 1)
    for num_seen in range(1, len(expected) + 1):
        resumed = ResumedOutput(output(tokenizer, stop=stop), CompletionStart(num_seen), 1)
        news = pushed(resumed, token_ids, size)
        assert resumed.finished
        seen = [token_id for each in news for token_id in each.seen]
        assert seen == token_ids[:num_seen]
        rest = expected[num_seen:]
        for name in ("text", "token_ids", "text_offsets"):
            found = [part for each in news for part in getattr(each, name)]
            assert found == [part for each in rest for part in getattr(each, name)]
        last = expected[-1]
        assert (news[-1].finish_reason, news[-1].stop_reason) == (last.finish_reason, last.stop_reason)
        assert all(each.finish_reason is None for each in news[:-1])


def test_cached_tokens_are_those_of_the_prompt(tokenizer: Tokenizer) -> None:
    resumed = ResumedOutput(output(tokenizer), CompletionStart(0), num_prompt_tokens=10)
    served_by = ServedBy(decode_cached_tokens=8, prefix_pulled_tokens=16, prefill_cached_tokens=24)
    news = resumed.push(RequestDelta(token_ids=[300], served_by=served_by))
    assert news.served_by == ServedBy(decode_cached_tokens=8, prefix_pulled_tokens=2, prefill_cached_tokens=10)


def test_the_last_event_of_a_delta_has_the_position() -> None:
    ids = EventIds(OutputTally(2))
    opening, text = b'data: {"text": "data: "}\n\n', b'data: {"text": "\\n\\ndata: "}\n\n'
    assert ids.stamped(opening, CompletionDelta(1)) == opening
    first = ids.stamped(opening + text, CompletionDelta(1, token_ids=[5]))
    assert first.startswith(opening + b"id: 0,1:")
    assert first.endswith(b"\n" + text)
    assert ids.stamped(b"", CompletionDelta(0, token_ids=[6])) == b""  # held back; the next event counts it
    assert ids.stamped(text, CompletionDelta(1, token_ids=[7])).startswith(b"id: 1,2:")
    assert ids.stamped(text, CompletionDelta(1, seen=[7], finish_reason="stop")) == b""  # the client has that end


async def nothing() -> AsyncGenerator[RequestDelta, None]:
    for delta in ():
        yield delta


async def test_other_tasks_have_turns_between_the_slices_of_a_remembered_output() -> None:
    num_turns = 0

    async def other() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    token_ids = tuple(range(10 * SLICE_TOKENS + 1))
    start = CompletionStart(0, token_ids, finish_reason=LENGTH)
    deltas = [delta async for delta in recalled_first(start, nothing())]
    task.cancel()
    assert [token_id for delta in deltas for token_id in delta.token_ids] == list(token_ids)
    assert max(len(delta.token_ids) for delta in deltas) == SLICE_TOKENS
    assert [delta.finish_reason for delta in deltas] == [0] * 10 + [LENGTH]
    assert num_turns >= 10


async def test_a_remembered_end_without_tokens_is_passed_on() -> None:
    async def nothing() -> AsyncGenerator[RequestDelta, None]:
        raise AssertionError("the output is complete")
        yield

    deltas = [delta async for delta in recalled_first(CompletionStart(0, (), finish_reason=LENGTH), nothing())]
    assert [(list(delta.token_ids), delta.finish_reason) for delta in deltas] == [([], LENGTH)]
