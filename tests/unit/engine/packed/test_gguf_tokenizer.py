"""Tokenizers and chat templates from GGUF files."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import generate_merges
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.checkpoint.gguf.metadata import Metadata
from baton.engine.checkpoint.gguf.tokenizer import SPLITTINGS, gguf_tokenizer
from baton.engine.errors import EngineError, InvalidCheckpoint, UnsupportedModel
from baton.router.text.tokenizer_files import read_tokenizer
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.perplexity import BUNDLED

TEXTS = (
    "def f(x):\n    return x**2  # 1234 times\n\n\n",
    "Ünïcode 日本語 🙂 and   spaces ",
    "<|im_start|>user\nhi<|im_end|>\n",
    "It's 3,141.59 o'clock\r\n\tWE'LL see",
    " x",
    "",
)
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "t", "h", "e", "a", "n", "i", "s", "▁t", "he", "▁th", "▁the", "an", "▁an", "is", "▁is", "▁this", "th"]
TOY: dict[str, Any] = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *BYTES, *PIECES],
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(place) for place in range(len(PIECES))],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}
BYTE_LEVEL: dict[str, Any] = {
    "general.architecture": "qwen2",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<|end|>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 3,
}


def made(values: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(gguf_tokenizer(Metadata(values, "a.gguf"), 512).tokenizer)


def test_the_bundled_models_tokenizer_and_template_are_restored(tmp_path: Path) -> None:
    written = write_gguf(BUNDLED, tmp_path / "gguf", Type.Q8_0)
    ours = read_tokenizer(str(checkpoint_directory(written.file, tmp_path / "cache")))
    theirs = PreTrainedTokenizerFast.from_pretrained(BUNDLED)
    for text in TEXTS:
        token_ids = theirs.encode(text)
        assert ours.encode(text) == token_ids
        assert ours.decode(token_ids) == theirs.decode(token_ids)
        assert ours.decode(token_ids, skip_special_tokens=True) == theirs.decode(token_ids, skip_special_tokens=True)
    chat = [{"role": "user", "content": "What is a list?"}, {"role": "assistant", "content": "A sequence."}]
    options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True}
    assert ours.apply_chat_template(chat, **options) == theirs.apply_chat_template(chat, **options)
    assert (ours.eos_token, ours.model_max_length) == (theirs.eos_token, theirs.model_max_length)


def test_texts_are_split_as_by_the_models_own_tokenizers() -> None:
    assert SPLITTINGS["qwen2"].pattern == PRETOKENIZE_REGEX
    # The pattern of Llama 3's tokenizer.json.
    assert SPLITTINGS["llama-bpe"].pattern == (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def test_byte_level_tokens() -> None:
    tokenizer = made(BYTE_LEVEL)
    assert tokenizer.encode("abba<|end|>").ids == [2, 1, 0, 3]
    assert tokenizer.decode([2, 1, 3]) == "abb"
    with_ends = made(BYTE_LEVEL | {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.bos_token_id": 0})
    assert with_ends.encode("ab").ids == [2, 3]
    llama3 = made(BYTE_LEVEL | {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 3})
    assert llama3.encode("ab").ids == [3, 2]


def test_sentence_piece_tokens() -> None:
    tokenizer = made(TOY)
    tokens = tokenizer.encode("this is the é").tokens
    assert tokens == ["<s>", "▁this", "▁is", "▁the", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("this is the é").ids) == "this is the é"
    tokens, scores = TOY["tokenizer.ggml.tokens"], TOY["tokenizer.ggml.scores"]
    merges = generate_merges(
        {token: place for place, token in enumerate(tokens)}, dict(zip(tokens, scores, strict=True))
    )
    assert json.loads(tokenizer.to_str())["model"]["merges"] == [list(pair) for pair in merges]
    plain = made(TOY | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    assert plain.encode("the").tokens == ["t", "he"]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModel, "tokenizer.ggml.model 'bert' is not supported"),
        ({"tokenizer.ggml.pre": "grok-9"}, UnsupportedModel, "tokenizer.ggml.pre 'grok-9' is not supported, only"),
        ({"tokenizer.ggml.tokens": ["a", "a", "ab", "b"]}, InvalidCheckpoint, "tokens has 'a' twice"),
        ({"tokenizer.ggml.tokens": []}, InvalidCheckpoint, "tokens is empty"),
        ({"tokenizer.ggml.tokens": [1, 2]}, InvalidCheckpoint, "tokens must be a list, each of it a text"),
        ({"tokenizer.ggml.merges": ["a c"]}, InvalidCheckpoint, "merges has 'a c', which are not all tokens"),
        ({"tokenizer.ggml.eos_token_id": 4}, InvalidCheckpoint, "eos_token_id must be below 4, not 4"),
        ({"tokenizer.ggml.eos_token_id": "x"}, InvalidCheckpoint, "eos_token_id must be a whole number, not 'x'"),
    ],
)  # fmt: skip
def test_other_tokenizers_are_refused_by_name(values: dict[str, Any], error: type[EngineError], message: str) -> None:
    with pytest.raises(error, match=message):
        made(BYTE_LEVEL | values)


def test_the_files_are_those_of_transformers(tmp_path: Path) -> None:
    files = gguf_tokenizer(Metadata(BYTE_LEVEL | {"tokenizer.chat_template": "{{ 1 }}"}, "a.gguf"), 512)
    (tmp_path / "tokenizer.json").write_text(files.tokenizer)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(files.config))
    read = read_tokenizer(str(tmp_path))
    assert (read.eos_token, read.bos_token, read.chat_template) == ("<|end|>", None, "{{ 1 }}")
