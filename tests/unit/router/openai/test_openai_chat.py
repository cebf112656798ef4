"""Chat completions through the real client, over real HTTP."""

import asyncio
import gc
from typing import Any

import orjson
from openai.types.chat import ChatCompletionChunk

from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL
from baton.router.generation import ChatPrompt
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_cached
from tests.unit.router.rigs.scripted_worker import ScriptedWorker, scripted

MODEL_NAME = "bundled_model"
HELLO: Any = [{"role": "user", "content": "hello there, how are you?"}]


async def collect(router: RunningRouter, **options: Any) -> list[ChatCompletionChunk]:
    stream = await router.openai.chat.completions.create(model=MODEL_NAME, messages=HELLO, stream=True, **options)
    return [chunk async for chunk in stream]


async def complete(router: RunningRouter, **options: Any) -> Any:
    return await router.openai.chat.completions.create(model=MODEL_NAME, messages=HELLO, **options)


async def test_streamed_and_whole_responses_agree() -> None:
    async with running_router(ScriptedWorker()) as router:
        whole = await complete(router, max_tokens=20, seed=5, logprobs=True, top_logprobs=2)
        chunks = await collect(
            router, max_tokens=20, seed=5, logprobs=True, top_logprobs=2, stream_options={"include_usage": True}
        )
        assert whole.choices[0].finish_reason == "length"
        assert chunks[0].choices[0].delta.role == "assistant"
        body = chunks[:-1]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in body) == whole.choices[0].message.content
        assert [chunk.choices[0].finish_reason for chunk in body][-1] == "length"
        assert {chunk.id for chunk in chunks} == {chunks[0].id}
        streamed = [entry for chunk in body if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
        assert streamed == whole.choices[0].logprobs.content
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 20
        assert all(chunk.usage is None for chunk in body)


async def test_logprobs_have_their_shape() -> None:
    async with running_router(ScriptedWorker()) as router:
        answer = await complete(router, max_tokens=6, logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        assert len(content) == 6
        assert all(len(entry.top_logprobs) == 3 for entry in content)
        assert [entry.logprob for entry in content] == [-0.5] * 6
        assert b"".join(bytes(entry.bytes) for entry in content).decode() == answer.choices[0].message.content
        bare = await complete(router, max_tokens=6, logprobs=True)
        assert [entry.top_logprobs for entry in bare.choices[0].logprobs.content] == [[]] * 6


async def test_logprobs_name_tokens_by_their_ids_if_wanted() -> None:
    options: dict[str, Any] = {"max_tokens": 6, "logprobs": True, "top_logprobs": 2, "seed": 5}
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    async with running_router(ScriptedWorker()) as router:
        plain = (await complete(router, **options)).choices[0]
        [whole] = (await complete(router, **options, extra_body=extra)).choices
        chunks = await collect(router, **options, extra_body=extra)
    content = whole.logprobs.content
    assert [entry.token for entry in content] == [f"token_id:{token_id}" for token_id in whole.token_ids]
    assert all(best.token.startswith("token_id:") for entry in content for best in entry.top_logprobs)
    assert [entry.bytes for entry in content] == [entry.bytes for entry in plain.logprobs.content]
    assert whole.message.content == plain.message.content
    streamed = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices and chunk.choices[0].logprobs]
    assert [entry for each in streamed for entry in each.content] == content


async def test_equal_seeds_repeat_the_output_and_missing_ones_do_not() -> None:
    async with running_router(ScriptedWorker()) as router:
        texts = [(await complete(router, max_tokens=12, seed=3)).choices[0].message.content for _ in range(2)]
        assert texts[0] == texts[1]
        free = [(await complete(router, max_tokens=12)).choices[0].message.content for _ in range(2)]
        assert free[0] != free[1]


async def test_a_second_completion_goes_to_the_worker_with_the_prompt() -> None:
    workers = [ScriptedWorker("decode-0"), ScriptedWorker("decode-1")]
    body = {"prompt": list(range(300, 500)), "max_tokens": 8, "n": 2}
    async with running_router(*workers) as router:
        for count in range(1, 4):
            answer = await router.http.post("/v1/completions", json={**body, "cache_salt": str(count)})
            assert answer.status_code == 200
            assert not any(len(worker.commands) % 2 for worker in workers)


async def test_completions_differ() -> None:
    async with running_router(ScriptedWorker("decode-0"), ScriptedWorker("decode-1")) as router:
        answer = await complete(router, max_tokens=8, n=4, seed=1)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert len({choice.message.content for choice in answer.choices}) == 4
        assert answer.usage.completion_tokens == 32
        alone = await complete(router, max_tokens=8, seed=1)
        assert alone.choices[0].message.content == answer.choices[0].message.content
        chunks = await collect(router, max_tokens=8, n=4, seed=1)
        texts = dict.fromkeys(range(4), "")
        for chunk in chunks:
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert [texts[index] for index in range(4)] == [choice.message.content for choice in answer.choices]


async def test_the_others_wait_until_the_first_completion_decodes() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        request = asyncio.create_task(complete(router, max_tokens=4, n=3))
        await until(lambda: bool(worker.commands))
        assert len(worker.commands) == 1  # its second token has not come
        worker.go_on.set()
        assert len((await request).choices) == 3
        assert len(worker.commands) == 3


async def test_headers_report_how_a_request_was_served() -> None:
    decode, prefill = ScriptedWorker(), ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL)
    async with running_router(decode, prefill, local_prefill_below=8) as router:
        for stream in (False, True):
            body = {"messages": HELLO, "max_tokens": 3, "stream": stream, "cache_salt": str(stream)}
            headers = {"x-request-id": "mine-1"}
            answer = await router.http.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.headers["x-baton-prefill"] == "prefill-0"
            assert answer.headers["x-baton-decode"] == "decode-0"
            assert answer.headers["x-baton-kv-transport"] == "shared_memory"
            assert int(answer.headers["x-baton-handed-over-tokens"]) > 0
            assert answer.headers["x-baton-cached-tokens"] == "0"
            assert answer.headers["x-request-id"] == "mine-1"
            assert "chatcmpl-mine-1" in answer.text
        command = decode.commands[0]
        assert (command.prefill.worker_id, command.prefill.address) == ("prefill-0", prefill.address)
        assert command.prefill.incarnation == prefill.incarnation
        assert not command.HasField("prefix_source")


async def test_the_cache_makes_the_second_request_local_and_is_counted() -> None:
    decode, prefill = ScriptedWorker(), ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL)
    async with running_router(decode, prefill, local_prefill_below=8) as router:
        first = await complete(router, max_tokens=3)
        num_prompt = first.usage.prompt_tokens
        await wait_cached(router.http, decode, num_prompt // 4)
        second = await complete(router, max_tokens=3)
        assert [command.HasField("prefill") for command in decode.commands] == [True, False]
        assert second.usage.prompt_tokens_details.cached_tokens == num_prompt // 4 * 4


async def test_stop_strings_and_end_tokens() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        tokens = (await router.http.post("/tokenize", json={"prompt": "one two three four"})).json()["tokens"]
        num_prompt = (await router.http.post("/tokenize", json={"messages": HELLO})).json()["count"]
        worker.script = scripted(tokens, num_prompt)
        answer = await complete(router, max_tokens=50, stop=[" thr", "never"])
        assert answer.choices[0].message.content == "one two"
        assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", " thr")
        await until(lambda: bool(worker.aborted))  # the worker is told that nobody wants more
        kept = await complete(router, max_tokens=50, stop=" thr", extra_body={"include_stop_str_in_output": True})
        assert kept.choices[0].message.content == "one two thr"
        ended = await complete(router, max_tokens=50, extra_body={"stop_token_ids": [tokens[2]]})
        assert ended.choices[0].stop_reason == tokens[2]
        assert ended.usage.completion_tokens == 3


async def test_characters_over_several_tokens_stream_whole() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        text = "a🎉b👩‍👧c"
        tokens = (await router.http.post("/tokenize", json={"prompt": text})).json()["tokens"]
        num_prompt = (await router.http.post("/tokenize", json={"messages": HELLO})).json()["count"]
        worker.script = scripted(tokens, num_prompt)
        chunks = await collect(router, max_tokens=len(tokens))
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
        assert "".join(pieces) == text
        assert "\ufffd" not in "".join(pieces)


async def test_max_tokens_fills_the_context_by_default() -> None:
    worker = ScriptedWorker()
    worker.max_model_len = 40
    async with running_router(worker) as router:
        answer = await complete(router)
        assert answer.usage.total_tokens == 40


async def test_sampling_options_reach_the_worker_with_the_models_defaults() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        await complete(router, max_tokens=2, extra_body={"top_k": -1, "min_p": 0.25, "priority": 3, "cache_salt": "s"})
        await complete(
            router, max_tokens=2, temperature=0, presence_penalty=0.5, logit_bias={"300": 2}, seed=-1,
            extra_body={"ignore_eos": True, "min_tokens": 1, "repetition_penalty": 1.25},
        )  # fmt: skip
        first, second = worker.commands
        # generation_config.json of the bundled model: 0.7, 0.9, 20, 1.05
        assert round(first.sampling.temperature, 6) == 0.7
        assert round(first.sampling.top_p, 6) == 0.9
        assert (first.sampling.top_k, first.sampling.min_p) == (0, 0.25)
        assert (first.priority, first.cache_salt) == (3, "s")
        assert (second.sampling.temperature, second.sampling.top_k) == (0, 20)
        assert (second.sampling.repetition_penalty, second.sampling.presence_penalty) == (1.25, 0.5)
        assert dict(second.sampling.logit_bias) == {300: 2}
        assert (second.sampling.ignore_eos, second.sampling.min_tokens) == (True, 1)
        assert second.sampling.seed == (1 << 64) - 1


async def test_token_ids_and_prompt_logprobs_are_returned_if_wanted() -> None:
    async with running_router(ScriptedWorker()) as router:
        extra = {"return_token_ids": True, "prompt_logprobs": 1}
        answer = (await complete(router, max_tokens=3, extra_body=extra)).model_dump()
        assert len(answer["choices"][0]["token_ids"]) == 3
        assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
        assert answer["prompt_logprobs"][0] is None
        second = answer["prompt_logprobs"][1][str(answer["prompt_token_ids"][1])]
        assert (second["logprob"], second["rank"]) == (-0.5, 1)
        assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
        chunks = await collect(router, max_tokens=3, extra_body={"return_token_ids": True})
        streamed = [token for chunk in chunks for token in (chunk.choices[0].model_dump().get("token_ids") or [])]
        assert len(streamed) == 3
        assert chunks[0].model_dump()["prompt_token_ids"] == answer["prompt_token_ids"]


async def test_usage_in_every_chunk() -> None:
    async with running_router(ScriptedWorker()) as router:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = await collect(router, max_tokens=3, stream_options=options)
        counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
        assert len(counts) == len(chunks)
        assert counts == sorted(counts)
        assert counts[-1] == 3


async def test_text_parts_and_continued_messages() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "Well"}]
        body = {
            "messages": messages, "max_tokens": 2, "add_generation_prompt": False, "continue_final_message": True,
        }  # fmt: skip
        assert (await router.http.post("/v1/chat/completions", json=body)).status_code == 200
        prompt = await router.http.post("/detokenize", json={"tokens": list(worker.commands[0].token_ids)})
        assert prompt.json()["prompt"] == "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\nWell"


async def test_events_are_lines_that_end_with_done() -> None:
    async with running_router(ScriptedWorker()) as router:
        body = {"messages": HELLO, "max_tokens": 3, "stream": True}
        answer = await router.http.post("/v1/chat/completions", json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        for event in events[:-2]:
            assert orjson.loads(event.removeprefix("data: "))["object"] == "chat.completion.chunk"


async def test_no_prompt_is_in_memory_while_its_output_is_generated() -> None:
    """It may be megabytes, of images for example, which count in no budget any more."""
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        request = asyncio.create_task(complete(router, max_tokens=2))
        await until(lambda: worker.num_pauses > 0)
        assert not [each for each in gc.get_objects() if type(each) is ChatPrompt]  # isinstance asks proxies, too
        worker.go_on.set()
        await request
