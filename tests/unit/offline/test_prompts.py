"""Prompts as tokens: the kinds of prompts, conversations, and the first one that cannot be served."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.offline.prompts import PromptReader, as_list
from baton.router.model_info import read_model_info
from baton.router.text.tokenizer import Tokenizer

MODEL = str(Path(__file__).parents[3] / "baton" / "bundled_model")
MAX_MODEL_LEN = 64


@pytest.fixture(scope="module")
def reader() -> Iterator[PromptReader]:
    """Reader for the bundled model, with a short context."""
    tokenizer = Tokenizer(MODEL)
    yield PromptReader(tokenizer, read_model_info(MODEL, "bundled"), MAX_MODEL_LEN)
    tokenizer.close()


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ("text", 1),
        (["text", "other"], 2),
        ([1, 2, 3], 1),
        ([[1, 2], [3]], 2),
        ({"prompt": "text"}, 1),
        ([{"prompt_token_ids": [1]}, "text"], 2),
        ([], 0),
    ],
)
def test_one_prompt_or_several(prompts: Any, count: int) -> None:
    assert len(as_list(prompts)) == count


async def test_kinds_of_prompts_have_the_same_tokens(reader: PromptReader) -> None:
    [text] = await reader.read(["a list of files"], 1)
    kinds: list[Any] = [{"prompt": "a list of files"}, {"prompt_token_ids": text.token_ids}, text.token_ids]
    found = await reader.read(kinds, 1)
    assert [each.token_ids for each in found] == [text.token_ids] * 3
    assert [each.text for each in found] == ["a list of files", None, None]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([5] * MAX_MODEL_LEN, "prompt 1: its 64 tokens exceed the context of 64 tokens .* leave no room for output"),
        ("word " * 200, "prompt 1: its .* tokens exceed the context of 64 tokens"),
        ("x" * 100_000, "prompt 1: its 100000 characters exceed the context"),
        ([], "prompt 1: it is empty"),
        ([4096], "prompt 1: it has a token id outside 0 to 4095"),
        ([1.5], "prompt 1: prompt_token_ids must be a list of integers"),
        (None, "prompt 1: it must be a text, token ids, or a mapping"),
        ({"prompt": 5}, "prompt 1: prompt must be a text"),
        ({"prompt": "a", "multi_modal_data": {}}, "prompt 1: multi_modal_data is not supported"),
    ],
)
async def test_the_first_prompt_that_cannot_be_served_is_named(reader: PromptReader, prompt: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await reader.read(["first", prompt, "x" * 100_000], 1)


async def test_a_conversation_is_rendered_with_its_options(reader: PromptReader) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with_header, without = await reader.read_chats(
        [{"messages": messages}, {"messages": messages, "add_generation_prompt": False}]
    )
    assert with_header.token_ids[: len(without.token_ids)] == without.token_ids
    assert len(with_header.token_ids) > len(without.token_ids)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "king", "content": "hello"}], r"conversation 0: messages\[0\].role"),
        ([{"role": "user", "content": "word " * 200}], "conversation 0: its .* tokens exceed the context"),
    ],
)
async def test_a_conversation_that_cannot_be_served_is_named(reader: PromptReader, messages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        await reader.read_chats([{"messages": messages}])


@pytest.mark.parametrize("kind", ["prompts", "conversations"])
async def test_reading_ends_in_the_middle_if_it_is_cancelled(reader: PromptReader, kind: str) -> None:
    bodies = [{"messages": [{"role": "user", "content": "a"}]}] * 1000
    reading = reader.read(["a"] * 1000, 1) if kind == "prompts" else reader.read_chats(bodies)
    task = asyncio.create_task(reading)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
