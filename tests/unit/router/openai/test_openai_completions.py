"""Completions through the real client, over real HTTP."""

import threading
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from baton.router import generation
from baton.router.inline_work import Pace
from baton.router.openai import completion_shape
from baton.router.openai.completion_shape import CompletionShape
from baton.router.openai.fields import GenerationFields
from baton.router.openai.logprobs import completion_block
from baton.rpc.requests import sampling_to_proto
from tests.unit.router.rigs.running_router import RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

PROMPT = "The cat sat on the mat"


async def complete(router: RunningRouter, prompt: Any = PROMPT, **options: Any) -> Any:
    return await router.openai.completions.create(model="bundled_model", prompt=prompt, **options)


async def tokenize(router: RunningRouter, text: str) -> list[int]:
    tokens: list[int] = (await router.http.post("/tokenize", json={"prompt": text})).json()["tokens"]
    return tokens


async def test_sixteen_tokens_by_default() -> None:
    async with running_router(ScriptedWorker()) as router:
        answer = await complete(router)
        assert answer.usage.completion_tokens == 16
        assert answer.choices[0].finish_reason == "length"
        assert answer.object == "text_completion"


async def test_the_default_is_cut_to_the_context() -> None:
    worker = ScriptedWorker()
    worker.max_model_len = 12
    async with running_router(worker) as router:
        answer = await complete(router)
        assert answer.usage.total_tokens == 12


async def test_text_and_its_tokens_are_the_same_prompt() -> None:
    async with running_router(ScriptedWorker()) as router:
        tokens = await tokenize(router, PROMPT)
        texts = [
            (await complete(router, prompt, seed=1)).choices[0].text for prompt in (PROMPT, tokens, [PROMPT], [tokens])
        ]
        assert len(set(texts)) == 1


async def test_several_prompts_are_numbered_through() -> None:
    async with running_router(ScriptedWorker(), ScriptedWorker("decode-1")) as router:
        prompts = ["one", "two two", "three three three"]
        answer = await complete(router, prompts, n=2, seed=4, max_tokens=5)
        assert [choice.index for choice in answer.choices] == list(range(6))
        for place, prompt in enumerate(prompts):
            alone = await complete(router, prompt, n=2, seed=4, max_tokens=5)
            texts = [choice.text for choice in answer.choices[2 * place : 2 * place + 2]]
            assert texts == [choice.text for choice in alone.choices]
        num_prompt = sum([len(await tokenize(router, prompt)) for prompt in prompts])
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (num_prompt, 30)
        stream = await complete(router, prompts, n=2, seed=4, max_tokens=5, stream=True)
        streamed = dict.fromkeys(range(6), "")
        async for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text
        assert list(streamed.values()) == [choice.text for choice in answer.choices]


async def test_prompts_share_their_options_and_give_other_requests_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    read, convert = Mock(wraps=GenerationFields.sampling), Mock(wraps=sampling_to_proto)
    monkeypatch.setattr(GenerationFields, "sampling", lambda *args: read(*args))
    monkeypatch.setattr(generation, "sampling_to_proto", convert)
    give_turn = AsyncMock()
    monkeypatch.setattr(Pace, "give_turn", give_turn)
    worker = ScriptedWorker()
    options: dict[str, Any] = {"logit_bias": {"7": 1.5, "9": -2.0}, "extra_body": {"stop_token_ids": [3, 8]}}
    async with running_router(worker) as router:
        await complete(router, ["one", "two"], n=2, max_tokens=2, seed=4, **options)
        await complete(router, ["one"], max_tokens=2)
    assert read.call_count == convert.call_count == 2  # once for each request
    assert give_turn.await_count == 3  # once for each prompt
    *shared, plain = [command.sampling for command in worker.commands]
    assert len(shared) == 4
    for message in shared:
        assert dict(message.logit_bias) == {7: 1.5, 9: -2.0}
        assert sorted(message.stop_token_ids) == [3, 8]
    assert len({message.seed for message in shared}) == 2  # the prompts' seeds are the same
    assert not plain.logit_bias


async def test_only_a_prompts_first_completion_has_prompt_logprobs() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        await complete(router, ["one", "two"], n=2, max_tokens=2, extra_body={"prompt_logprobs": 1})
    messages = {command.request_id.split("-", 2)[-1]: command.sampling for command in worker.commands}
    counts = sorted(
        message.prompt_logprobs if message.HasField("prompt_logprobs") else 0 for message in messages.values()
    )
    assert counts == [0, 0, 1, 1]


async def test_logprobs_and_their_offsets() -> None:
    async with running_router(ScriptedWorker()) as router:
        answer = await complete(router, max_tokens=6, logprobs=2)
        block, text = answer.choices[0].logprobs, answer.choices[0].text
        assert block.token_logprobs == [-0.5] * 6
        assert "".join(block.tokens) == text
        starts = [*block.text_offset, len(text)]
        assert [text[start:end] for start, end in pairwise(starts)] == block.tokens
        assert all(len(top) in (1, 2) for top in block.top_logprobs)
        assert all(top[token] == -0.5 for top, token in zip(block.top_logprobs, block.tokens, strict=True))


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_logprobs_begins_with_the_prompt(stream: bool) -> None:
    async with running_router(ScriptedWorker()) as router:
        tokens = await tokenize(router, PROMPT)
        options: dict[str, Any] = {"max_tokens": 3, "echo": True, "logprobs": 1, "seed": 2}
        if not stream:
            [choice] = (await complete(router, **options)).choices
            text, block = choice.text, choice.logprobs.model_dump()
        else:
            text, block = "", {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
            async for chunk in await complete(router, **options, stream=True):
                text += chunk.choices[0].text
                for name, values in block.items():
                    values.extend(getattr(chunk.choices[0].logprobs, name))
        assert text.startswith(PROMPT)
        assert text[len(PROMPT) :] == (await complete(router, max_tokens=3, seed=2)).choices[0].text
        assert block["token_logprobs"] == [None, *[-0.5] * (len(tokens) + 2)]
        assert block["top_logprobs"][0] is None
        starts = [*block["text_offset"], len(text)]
        assert [text[start:end] for start, end in pairwise(starts)] == block["tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_name_tokens_by_their_ids_if_wanted(stream: bool) -> None:
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    options: dict[str, Any] = {"max_tokens": 3, "echo": True, "logprobs": 2, "seed": 2, "extra_body": extra}
    async with running_router(ScriptedWorker()) as router:
        prompt = await tokenize(router, PROMPT)
        plain = (await complete(router, **{**options, "extra_body": {}})).choices[0]
        if stream:
            choices = [chunk.choices[0] async for chunk in await complete(router, **options, stream=True)]
        else:
            choices = (await complete(router, **options)).choices
    token_ids = [token_id for choice in choices for token_id in choice.token_ids]
    names = [name for choice in choices for name in choice.logprobs.tokens]
    assert names == [f"token_id:{token_id}" for token_id in (*prompt, *token_ids)]
    best = [each for choice in choices for each in choice.logprobs.top_logprobs]
    assert best[0] is None
    assert all(name in each for name, each in zip(names[1:], best[1:], strict=True))
    assert all(key.startswith("token_id:") for each in best[1:] for key in each)
    assert "".join(choice.text for choice in choices) == plain.text
    assert [each for choice in choices for each in choice.logprobs.text_offset] == plain.logprobs.text_offset


async def test_large_responses_are_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    word = CompletionShape.whole

    def whole(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return word(*arguments)

    monkeypatch.setattr(CompletionShape, "whole", whole)
    monkeypatch.setattr("baton.router.openai.response.MAX_INLINE_SIZE", 20)
    async with running_router(ScriptedWorker()) as router:
        answer = await complete(router, n=2, max_tokens=3, logprobs=5, echo=True)
        assert len(answer.choices) == 2
        assert threading.main_thread() not in threads
        assert len(threads) == 1
        await complete(router, n=2, max_tokens=3)
        assert threads[1] is threading.main_thread()  # a thread would cost more than the little there is to word


async def test_echo_of_only_the_prompt() -> None:
    async with running_router(ScriptedWorker()) as router:
        tokens = await tokenize(router, PROMPT)
        answer = await complete(router, tokens, max_tokens=0, echo=True, logprobs=0)
        assert answer.choices[0].text == PROMPT
        assert answer.choices[0].finish_reason == "length"
        assert len(answer.choices[0].logprobs.tokens) == len(tokens)
        assert answer.usage.completion_tokens == 0


async def test_logprobs_of_an_echo_are_encoded_once_for_all_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    num_worded = 0

    def counted(token_ids: Any, positions: Any, *rest: Any) -> Any:
        nonlocal num_worded
        num_worded += len(positions)
        return completion_block(token_ids, positions, *rest)

    monkeypatch.setattr(completion_shape, "completion_block", counted)
    async with running_router(ScriptedWorker()) as router:
        num_prompt = len(await tokenize(router, PROMPT))
        options: dict[str, Any] = {"n": 4, "max_tokens": 2, "echo": True, "logprobs": 1}
        await complete(router, **options)
        assert num_worded == num_prompt - 1 + 4 * 2
        num_worded = 0
        async for _ in await complete(router, stream=True, **options):
            pass
        assert num_worded == num_prompt - 1 + 4 * 2


async def test_every_completion_echoes_the_logprobs_of_its_prompt() -> None:
    async with running_router(ScriptedWorker()) as router:
        answer = await complete(router, max_tokens=2, echo=True, logprobs=0, n=3)
        blocks = [choice.logprobs for choice in answer.choices]
        num_prompt = answer.usage.prompt_tokens
        assert [block.token_logprobs for block in blocks] == [[None, *[-0.5] * (num_prompt + 1)]] * 3


async def test_each_completion_has_token_ids_and_prompt_logprobs() -> None:
    async with running_router(ScriptedWorker()) as router:
        extra = {"return_token_ids": True, "prompt_logprobs": 0}
        answer = (await complete(router, ["a b c", "d e"], max_tokens=2, extra_body=extra)).model_dump()
        for choice, text in zip(answer["choices"], ("a b c", "d e"), strict=True):
            assert choice["prompt_token_ids"] == await tokenize(router, text)
            assert len(choice["token_ids"]) == 2
            assert len(choice["prompt_logprobs"]) == len(choice["prompt_token_ids"])
