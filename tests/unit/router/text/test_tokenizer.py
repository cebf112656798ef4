"""Text to tokens and back, without torch."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from baton.engine.checkpoint.token_bytes import TokenBytes
from baton.engine.errors import InvalidRequest
from baton.router.text.detokenizer import MAX_INCOMPLETE, MAX_SILENT, StreamDetokenizer
from baton.router.text.tokenizer import LONG_SIZE, Tokenizer
from tests.unit.router.rigs.running_router import MODEL

TEXTS = [
    "hello world",
    "naïve café 🎉👩‍👩‍👧 done",
    "日本語のテキスト",
    "def f(x):\n    return x  # 1",
    " leading",
    "🎉" * 30,
]


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    tokenizer = Tokenizer(MODEL)
    yield tokenizer
    tokenizer.close()


def byte_fallback_tokenizer() -> FastTokenizer:
    """Return a vocabulary like sentencepiece's: pieces with a mark for the space, and bytes."""
    vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    for piece in ("▁hello", "▁world", "!", "wide"):
        vocabulary[piece] = len(vocabulary)
    tokenizer = FastTokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.mark.parametrize("size", [1, LONG_SIZE])
async def test_many_texts_of_one_client_delay_no_other_client(tokenizer: Tokenizer, size: int) -> None:
    order: list[str] = []

    async def decode(client: str) -> None:
        await tokenizer.decode([300] * size, False, client)
        order.append(client)

    async with asyncio.TaskGroup() as group:
        for client in ["busy"] * 30 + ["other"]:
            group.create_task(decode(client))
    assert order.index("other") < 10


def test_a_router_imports_neither_torch_nor_the_sdk_of_exports_that_it_does_not_make() -> None:
    code = f"""
import asyncio, sys
import baton.router.app
from baton.router.config import RouterConfig
from baton.router.service import make_service
tokenizer = make_service(RouterConfig(model={MODEL!r})).models.named(None).tokenizer
prompt = [{{"role": "user", "content": "hi"}}]
text = asyncio.run(tokenizer.render(prompt, True, False, {{}}))
assert asyncio.run(tokenizer.encode(text, False))
tokenizer.close()
print([name for name in ("torch", "opentelemetry.sdk") if name in sys.modules])
"""
    root = Path(__file__).parents[4]
    assert subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True) == "[]\n"


@pytest.mark.parametrize("text", TEXTS)
async def test_text_survives_token_by_token(tokenizer: Tokenizer, text: str) -> None:
    token_ids = await tokenizer.encode(text, add_special_tokens=False)
    detokenizer = tokenizer.detokenizer([], skip_special_tokens=True)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    assert "".join(pieces) + detokenizer.flush() == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids).decode() == text


async def test_an_emoji_over_several_tokens_comes_at_once(tokenizer: Tokenizer) -> None:
    token_ids = await tokenizer.encode("a🎉", add_special_tokens=False)
    assert len(token_ids) == 5
    detokenizer = tokenizer.detokenizer(token_ids[:1], skip_special_tokens=True)
    assert [detokenizer.push(token_id) for token_id in token_ids[1:]] == ["", "", "", "🎉"]


async def test_an_unfinished_character_becomes_a_replacement_at_the_end(tokenizer: Tokenizer) -> None:
    token_ids = await tokenizer.encode("🎉", add_special_tokens=False)
    detokenizer = tokenizer.detokenizer([], skip_special_tokens=True)
    assert [detokenizer.push(token_id) for token_id in token_ids[:3]] == ["", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


async def test_a_prompt_that_ends_within_a_character_is_not_repeated(tokenizer: Tokenizer) -> None:
    token_ids = await tokenizer.encode("hi🎉 you", add_special_tokens=False)
    detokenizer = tokenizer.detokenizer(token_ids[:3], skip_special_tokens=True)
    text = "".join(detokenizer.push(token_id) for token_id in token_ids[3:]) + detokenizer.flush()
    assert "hi" not in text
    assert text.endswith(" you")


def test_random_tokens_give_the_text_of_the_whole(tokenizer: Tokenizer) -> None:
    rng = random.Random(2)
    for _ in range(50):
        token_ids = [rng.randrange(tokenizer.backend.get_vocab_size()) for _ in range(60)]
        detokenizer = tokenizer.detokenizer([], skip_special_tokens=True)
        text = "".join(detokenizer.push(token_id) for token_id in token_ids) + detokenizer.flush()
        assert text == tokenizer.backend.decode(token_ids, skip_special_tokens=True)


def test_both_detokenizers_return_the_same_text(tokenizer: Tokenizer) -> None:
    rng = random.Random(4)
    for _ in range(50):
        token_ids = [rng.randrange(3, 400) for _ in range(40)]  # bytes, mostly
        theirs = StreamDetokenizer(tokenizer.backend, [], skip_special_tokens=True)
        ours = tokenizer.detokenizer([], skip_special_tokens=True)
        texts = ["".join(map(each.push, token_ids)) + each.flush() for each in (ours, theirs)]
        assert texts[0] == texts[1] == tokenizer.backend.decode(token_ids)


def test_special_tokens_are_shown_or_not(tokenizer: Tokenizer) -> None:
    for skip, expected in ((True, ""), (False, "<|im_end|>")):
        detokenizer = tokenizer.detokenizer([], skip_special_tokens=skip)
        assert detokenizer.push(2) + detokenizer.flush() == expected


def test_memory_stays_bounded_without_text_and_with_fragments(tokenizer: Tokenizer) -> None:
    silent = tokenizer.detokenizer([], skip_special_tokens=True)
    assert "".join(silent.push(2) for _ in range(5000)) == ""
    [fragment] = [token for token in range(300) if tokenizer.token_bytes(token) == b"\x9f"]
    broken = tokenizer.detokenizer([], skip_special_tokens=True)
    text = "".join(broken.push(fragment) for _ in range(10 * MAX_INCOMPLETE))
    assert set(text) == {"\ufffd"}


def test_sentencepiece_keeps_the_space_of_the_first_word_after_a_prompt() -> None:
    tokenizer = byte_fallback_tokenizer()
    hello, world = tokenizer.token_to_id("▁hello"), tokenizer.token_to_id("▁world")
    assert StreamDetokenizer(tokenizer, [hello], True).push(world) == " world"
    assert StreamDetokenizer(tokenizer, [], True).push(world) == "world"


def test_a_stream_that_was_silent_keeps_the_space_of_the_next_word() -> None:
    tokenizer = byte_fallback_tokenizer()
    tokenizer.add_special_tokens(["<s>"])
    hello, silent, world = (tokenizer.token_to_id(token) for token in ("▁hello", "<s>", "▁world"))
    detokenizer = StreamDetokenizer(tokenizer, [], True)
    assert detokenizer.push_all([hello, *[silent] * (MAX_SILENT + 1), world]) == "hello world"


def test_bytes_of_sentencepiece_tokens() -> None:
    tokenizer = byte_fallback_tokenizer()
    token_bytes = TokenBytes(tokenizer)
    emoji = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🎉".encode()]
    assert b"".join(token_bytes[token_id] for token_id in emoji).decode() == "🎉"
    assert token_bytes[tokenizer.token_to_id("▁hello")] == b" hello"
    assert token_bytes[9999] == b""
    detokenizer = StreamDetokenizer(tokenizer, [], True)
    assert [detokenizer.push(token_id) for token_id in emoji] == ["", "", "", "🎉"]


def test_a_character_outside_the_byte_table_is_itself() -> None:
    tokenizer = FastTokenizer(models.BPE({"a€": 0, "Ġb": 1}, []))
    tokenizer.decoder = decoders.ByteLevel()
    token_bytes = TokenBytes(tokenizer)
    assert (token_bytes[0], token_bytes[1]) == ("a€".encode(), b" b")


async def test_text_offsets_count_characters(tokenizer: Tokenizer) -> None:
    token_ids = await tokenizer.encode("é🎉x", add_special_tokens=False)
    offsets = await tokenizer.text_offsets(token_ids, skip_special_tokens=True)
    assert offsets[0] == 0
    assert offsets[-1] == 2
    assert offsets == sorted(offsets)


async def test_chat_template(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]
    prompt = await tokenizer.render(messages[:1], True, False, {})
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    continued = await tokenizer.render(messages, False, True, {})
    assert continued == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nWell"


async def test_template_options_must_not_override_the_calls_arguments(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="must not set tokenize"):
        await tokenizer.render([{"role": "user", "content": "hi"}], True, False, {"tokenize": True})
    with pytest.raises(InvalidRequest, match="must not set conversations, self"):
        await tokenizer.render([{"role": "user", "content": "hi"}], True, False, {"self": 1, "conversations": []})


async def test_a_template_error_is_a_client_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="chat template rejects"):
        await tokenizer.render([{"role": "user", "content": {"not": "text"}}], True, False, {})


@pytest.mark.parametrize(
    "template", ["{{ 1 // 0 }}", "{{ ''.join(messages) }}", "{{ messages[7].role }}", "{{ raise_exception('no') }}"]
)
async def test_a_template_may_fail_in_any_way(template: str, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((Path(MODEL) / name).read_bytes())
    (tmp_path / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer(str(tmp_path))
    with pytest.raises(InvalidRequest, match="chat template rejects"):
        await tokenizer.render([{"role": "user", "content": "hi"}], True, False, {})
    tokenizer.close()


async def test_a_long_text_delays_neither_the_loop_nor_short_texts(tokenizer: Tokenizer) -> None:
    long = asyncio.gather(*(tokenizer.encode(f"{place} é The cat sat. " * 20_000, False) for place in range(2)))
    num_short = 0
    while not long.done():
        assert await tokenizer.encode(f"hello world {num_short}", False)
        num_short += 1
        await asyncio.sleep(0)
    assert num_short > 20
    assert len((await long)[0]) > 40_000


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        Tokenizer(str(tmp_path))
