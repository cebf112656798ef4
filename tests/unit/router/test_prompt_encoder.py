"""Prompts encoded in pieces and by words have exactly the tokenizer's ids."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from router.character_kinds import CharacterKind, CharacterKinds, UnknownCharacter
from router.prompt_encoder import PromptEncoder
from router.special_ends import SpecialEnds, find_special_ends
from router.text_segments import make_text_segments
from router.word_encoder import make_word_encoder
from tests.unit.router.tokenizer_variants import (
    PATTERNS,
    VARIANTS,
    added_token,
    bundled_parts,
    make_tokenizer,
    make_variant,
    split_by,
)

PIECES = [
    *"abcXYZ 019'\"()[].,;:!?-_/\\\n\r\t\x0b\x0c\x1c\x1f\x00\x7f",
    *("'s", "'LL", "'Re", "  ", "\n\n", " \n", "<|im_start|>", "<|im_end|>", "<|im", "|>", "é", "ñ", "ß", "日本"),
    *("🎉", "—", "’s", "\u00a0", "\u2003", "\u0301", "e\u0301", "٣", "²", "½", "\u200d", "\u2028", "\x85", "ſ", "K"),  # noqa: RUF001  # look-alikes are the point
    *("ǅ", "\u0378", "\U0001fae8", "\u212b", "\ufeff", "й", "한국"),
]
TOKENIZERS = {name: make_variant(name) for name in VARIANTS}
ENCODERS = {name: PromptEncoder(tokenizer, 1 << 16) for name, tokenizer in TOKENIZERS.items()}


def encode(encoder: PromptEncoder, text: str) -> Sequence[int]:
    draft = encoder.look_up(text)
    encoder.encode(draft)
    return encoder.finish(draft)


def expected(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", VARIANTS)
def test_random_texts_have_the_tokenizers_ids(name: str) -> None:
    rng = random.Random(5)
    for _ in range(1500):
        text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 60)))
        assert encode(ENCODERS[name], text) == expected(TOKENIZERS[name], text), repr(text)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=40), name=st.sampled_from(VARIANTS))
def test_any_text_has_the_tokenizers_ids(text: str, name: str) -> None:
    assert encode(ENCODERS[name], text) == expected(TOKENIZERS[name], text)


@pytest.mark.parametrize("name", ["bundled", *PATTERNS])
def test_the_compiled_words_and_their_twin_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, rng = TOKENIZERS[name], random.Random(6)
    first = make_word_encoder(tokenizer)
    monkeypatch.setattr("router.word_encoder.CompiledWords", None)
    twin = make_word_encoder(tokenizer)
    assert first is not None
    assert twin is not None
    assert twin.cost_s("é") is None
    for _ in range(300):
        text = "".join(piece for _ in range(50) if (piece := rng.choice(PIECES)).isascii())
        assert first.encode(text) == twin.encode(text), repr(text)


def test_a_long_text_is_encoded_in_parts() -> None:
    text = "the cat sat on 27 mats. " * 2000
    assert encode(ENCODERS["bundled"], text) == expected(TOKENIZERS["bundled"], text)


def test_the_turns_of_a_chat_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    encoder = PromptEncoder(tokenizer, 1 << 16)
    turns = [f"<|im_start|>user\nsay {number} é\u017f<|im_end|>\n" for number in range(10)]
    for length in range(1, 11):
        text = "".join(turns[:length])
        assert encoder.look_up(text).missing == ([f"user\nsay {length - 1} é\u017f"] + ["\n"] * (length == 1))
        assert encode(encoder, text) == expected(tokenizer, text)
    assert encoder.look_up("".join(turns)).cost_s == 0


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_that_look_around_are_left_to_the_tokenizer(flag: str) -> None:
    added = [*bundled_parts()["added_tokens"], added_token("<x>", 4000, **{flag: True})]
    tokenizer = make_tokenizer(added_tokens=added)
    assert make_text_segments(tokenizer) is None
    encoder = PromptEncoder(tokenizer, 1 << 16)
    for text in ("a <x> b", "a<x>b", ""):
        assert encode(encoder, text) == expected(tokenizer, text)


def test_the_longest_of_several_added_tokens_counts() -> None:
    added = [added_token("<a", 0), added_token("<a>", 1), added_token("a>b", 2)]
    tokenizer = make_tokenizer(added_tokens=added)
    encoder = PromptEncoder(tokenizer, 1 << 16)
    for text in ("x<a>b", "<a<a>", "<a>b<", "xa>b<ab"):
        assert encode(encoder, text) == expected(tokenizer, text), text


def test_texts_that_are_split_in_unknown_ways_are_left_to_the_tokenizer() -> None:
    possessive = split_by(r"\p{L}++|\P{L}")
    assert make_word_encoder(make_tokenizer(pre_tokenizer=possessive)) is None
    gaps = split_by(r"\p{L}+|\p{N}+")
    assert make_word_encoder(make_tokenizer(pre_tokenizer=gaps)) is None
    metaspace = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}
    assert make_text_segments(make_tokenizer(pre_tokenizer=metaspace)) is None
    assert make_word_encoder(make_tokenizer(normalizer={"type": "Lowercase"})) is None


def test_special_tokens_around_a_prompt() -> None:
    assert find_special_ends(make_tokenizer()) == SpecialEnds((), ())
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    assert find_special_ends(make_tokenizer(post_processor=template)) == SpecialEnds((1,), ())
    bert = {"type": "BertProcessing", "sep": ["<|im_end|>", 2], "cls": ["<|im_start|>", 1]}
    assert find_special_ends(make_tokenizer(post_processor=bert)) is None


def test_kinds_of_characters() -> None:
    kinds = CharacterKinds()
    found = [kinds.kind(character) for character in "aй日1²٣ \u00a0\n—🎉\u0301"]
    assert (
        found
        == [CharacterKind.LETTER] * 3
        + [CharacterKind.DIGIT] * 3
        + [CharacterKind.SPACE] * 3
        + [CharacterKind.OTHER] * 3
    )
    with pytest.raises(UnknownCharacter):
        kinds.kind("\u0378")
