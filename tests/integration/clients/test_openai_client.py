"""The real `openai` client against the real server."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from tests.integration.workers_view import wait_all_ready, wait_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "baton-bundled"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What does json.dumps do?"}]
LONG_PROMPT = "The module textwrap wraps and fills text. " * 20


@pytest_asyncio.fixture(loop_scope="session")
async def api(cluster_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{cluster_url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_models(api: openai.AsyncOpenAI) -> None:
    models = await api.models.list()
    assert [model.id for model in models.data] == [MODEL]


async def test_a_streamed_chat_equals_a_whole_one(api: openai.AsyncOpenAI) -> None:
    options = {"model": MODEL, "messages": QUESTION, "max_tokens": 40, "seed": 7}
    whole = await api.chat.completions.create(**options)  # type: ignore[call-overload]
    parts, usage = [], None
    stream = await api.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    async for chunk in stream:
        usage = chunk.usage or usage
        parts += [choice.delta.content or "" for choice in chunk.choices]
    text = whole.choices[0].message.content
    assert "".join(parts) == text
    assert sum(character.isalpha() or character.isspace() for character in text) > 0.7 * len(text)
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.prompt_tokens_details is not None


async def test_a_long_prompt_is_handed_over_and_the_headers_say_so(api: openai.AsyncOpenAI, cluster_url: str) -> None:
    await wait_all_ready(cluster_url)
    prompt = "Handed over. " + LONG_PROMPT
    first = await api.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
    assert first.headers["x-baton-prefill"] == "prefill-0"
    assert first.headers["x-baton-decode"] == "decode-0"
    assert first.headers["x-baton-kv-transport"] == "shared_memory"
    completion = first.parse()
    assert completion.usage is not None
    assert int(first.headers["x-baton-handed-over-tokens"]) == completion.usage.prompt_tokens > 100
    while True:  # until the router has received the workers' cache events
        again = await api.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
        assert again.parse().choices[0].text == completion.choices[0].text
        if again.headers["x-baton-prefill"] == "decode-0":
            break
    assert int(again.headers["x-baton-cached-tokens"]) > 100
    assert again.headers["x-baton-handed-over-tokens"] == "0"


async def test_completions_differ_and_seeds_repeat(api: openai.AsyncOpenAI) -> None:
    options = {"model": MODEL, "prompt": LONG_PROMPT, "max_tokens": 24, "temperature": 1.0, "n": 3, "seed": 11}
    first = await api.completions.create(**options)  # type: ignore[call-overload]
    second = await api.completions.create(**options)  # type: ignore[call-overload]
    texts = [choice.text for choice in sorted(first.choices, key=lambda choice: choice.index)]
    assert texts == [choice.text for choice in sorted(second.choices, key=lambda choice: choice.index)]
    assert len(set(texts)) == 3
    assert first.usage.completion_tokens <= 72


async def test_logprobs_in_both_formats(api: openai.AsyncOpenAI) -> None:
    chat = await api.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    content = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
    assert content is not None
    assert "".join(entry.token for entry in content).startswith(chat.choices[0].message.content or "?")
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
    echoed = await api.completions.create(
        model=MODEL, prompt="Return the name of", max_tokens=4, temperature=0, echo=True, logprobs=2
    )
    logprobs = echoed.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert "".join(logprobs.tokens) == echoed.choices[0].text
    assert echoed.choices[0].text.startswith("Return the name of")
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(len(logprobs.tokens))]


async def test_a_stop_string_ends_the_text_before_it(api: openai.AsyncOpenAI) -> None:
    free = await api.completions.create(model=MODEL, prompt=LONG_PROMPT, max_tokens=30, temperature=0)
    words = free.choices[0].text.split()
    stop = words[len(words) // 2]
    stopped = await api.completions.create(model=MODEL, prompt=LONG_PROMPT, max_tokens=30, temperature=0, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == free.choices[0].text[: free.choices[0].text.index(stop)]


async def test_errors_have_openais_format(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-5"):
        await api.chat.completions.create(model="gpt-5", messages=QUESTION)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await api.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="context"):
        await api.completions.create(model=MODEL, prompt=[5] * 100_000, max_tokens=1)


async def test_a_cancelled_stream_frees_everything(api: openai.AsyncOpenAI, cluster_url: str) -> None:
    streams = [
        await api.completions.create(
            model=MODEL,
            prompt=f"{number} {LONG_PROMPT}",
            max_tokens=1000,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for number in range(4)
    ]
    for stream in streams:
        await anext(aiter(stream))
        await stream.close()
    assert len(await wait_idle(cluster_url)) == 2


async def test_tokenize_and_detokenize_are_inverse(cluster_url: str) -> None:
    text = "Wrap a paragraph, déjà vu 🙂"
    async with httpx.AsyncClient(base_url=cluster_url, verify=False) as http:
        tokens = (await http.post("/tokenize", json={"prompt": text, "add_special_tokens": False})).json()["tokens"]
        assert (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"] == text


async def test_metrics_count_what_happened(api: openai.AsyncOpenAI, cluster_url: str) -> None:
    async with httpx.AsyncClient(base_url=cluster_url, verify=False) as http:

        async def generated() -> float:
            lines = (await http.get("/metrics")).text.splitlines()
            return sum(
                float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("baton:generation_tokens_total")
            )

        before = await generated()
        await api.completions.create(model=MODEL, prompt="x", max_tokens=7, extra_body={"ignore_eos": True})
        while await generated() < before + 7:
            await asyncio.sleep(0.05)
        assert await generated() == before + 7
