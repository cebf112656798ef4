"""From the tokens of one completion to its client's deltas."""

from collections.abc import Iterator

import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos import common_pb2
from baton.protos.worker_pb2 import RequestDelta
from baton.router.generation import Generation, GenerationRequest
from baton.router.output.completion import CompletionOutput
from baton.router.text.tokenizer import Tokenizer
from tests.unit.router.rigs.running_router import MODEL

END = 2  # <|im_end|>


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    tokenizer = Tokenizer(MODEL)
    yield tokenizer
    tokenizer.close()


def output(
    tokenizer: Tokenizer, min_tokens: int = 0, stop_token_ids: frozenset[int] = frozenset(), **options: object
) -> CompletionOutput:
    request = GenerationRequest(request_id="r", prompt=[300], sampling=SamplingParams(), **options)  # type: ignore[arg-type]
    sampling = SamplingParams(min_tokens=min_tokens, stop_token_ids=stop_token_ids)
    return CompletionOutput(0, Generation(request, [300], sampling), tokenizer)


def delta(*token_ids: int, finish: int = 0) -> RequestDelta:
    return RequestDelta(token_ids=token_ids, finish_reason=finish)  # type: ignore[arg-type]  # a number of the enum


async def test_a_stop_string_over_several_tokens(tokenizer: Tokenizer) -> None:
    token_ids = await tokenizer.encode("one two!three four", add_special_tokens=False)
    completion = output(tokenizer, stop=("two!th",))
    shown, taken = "", 0
    for token_id in token_ids:
        news = completion.push(delta(token_id))
        shown, taken = shown + news.text, taken + 1
        if completion.finished:
            break
    assert (shown, news.finish_reason, news.stop_reason) == ("one ", "stop", "two!th")
    assert completion.num_tokens == taken < len(token_ids)


async def test_tokens_after_the_stop_string_are_left_out(tokenizer: Tokenizer) -> None:
    token_ids = await tokenizer.encode("one two three", add_special_tokens=False)
    completion = output(tokenizer, stop=("one",), include_stop=True)
    news = completion.push(delta(*token_ids))
    assert news.text == "one"
    assert len(news.token_ids) == completion.num_tokens < len(token_ids)


async def test_no_stop_string_ends_within_min_tokens(tokenizer: Tokenizer) -> None:
    token_ids = await tokenizer.encode("stop stop", add_special_tokens=False)
    completion = output(tokenizer, min_tokens=len(token_ids) - 1, stop=("stop",))
    news = completion.push(delta(*token_ids))
    assert news.text == "stop "
    assert news.finish_reason == "stop"


async def test_held_back_text_comes_at_the_end(tokenizer: Tokenizer) -> None:
    token_ids = await tokenizer.encode("hello wor", add_special_tokens=False)
    completion = output(tokenizer, stop=("world",))
    held = completion.push(delta(*token_ids))
    assert held.text == "hello "
    last = completion.push(delta(token_ids[-1], finish=common_pb2.FINISH_REASON_LENGTH))
    assert (last.text, last.finish_reason) == ("wor" + tokenizer.token_text(token_ids[-1]), "length")


@pytest.mark.parametrize(("include", "text"), [(False, ""), (True, "<|im_end|>")])
def test_an_end_token_is_counted_and_hidden(tokenizer: Tokenizer, include: bool, text: str) -> None:
    completion = output(tokenizer, include_stop=include, skip_special_tokens=False)
    news = completion.push(delta(END, finish=common_pb2.FINISH_REASON_STOP))
    assert (news.text, news.token_ids, news.stop_reason) == (text, [END], None)
    assert completion.finished


def test_a_stop_token_is_named(tokenizer: Tokenizer) -> None:
    news = output(tokenizer, stop_token_ids=frozenset([500])).push(
        delta(400, 500, finish=common_pb2.FINISH_REASON_STOP)
    )
    assert news.stop_reason == 500
    assert news.text == tokenizer.token_text(400)


def test_a_completion_of_only_the_prompt_has_no_output(tokenizer: Tokenizer) -> None:
    news = output(tokenizer, max_tokens=0).push(delta(400, finish=common_pb2.FINISH_REASON_STOP))
    assert (news.text, news.token_ids, news.finish_reason) == ("", [], "length")


def test_each_completion_has_its_own_seed() -> None:
    request = GenerationRequest(request_id="r", prompt=[1], sampling=SamplingParams())
    generation = Generation(request, [1], SamplingParams(seed=7, prompt_logprobs=2))
    seeds = [generation.completion_sampling(index).seed for index in range(4)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert seeds == [generation.completion_sampling(index).seed for index in range(4)]
    assert generation.completion_sampling(1).prompt_logprobs is None  # the first completion reports them
