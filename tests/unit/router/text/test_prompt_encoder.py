"""Prompts encoded in pieces and by tiktoken have exactly the tokenizer's ids."""

import random
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from baton.router.text.byte_level import MAX_CHARS, make_byte_pair_encoder
from baton.router.text.prompt_encoder import MAX_CUTS, PromptEncoder, make_text_segments
from baton.router.text.tokenizer_files import SpecialTokenAffixes, find_special_token_affixes
from tests.marks import slow_case
from tests.unit.router.tokenizer_variants import (
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


@cache
def tokenizer_of(variant: str) -> Tokenizer:
    return make_variant(variant)


@cache
def encoder_of(variant: str) -> PromptEncoder:
    return PromptEncoder(tokenizer_of(variant), 1 << 16)


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
        assert encode(encoder_of(name), text) == expected(tokenizer_of(name), text), repr(text)


@settings(max_examples=100)
@given(text=st.text(max_size=40), name=st.sampled_from(VARIANTS))
def test_any_text_has_the_tokenizers_ids(text: str, name: str) -> None:
    assert encode(encoder_of(name), text) == expected(tokenizer_of(name), text)


@pytest.mark.parametrize("name", VARIANTS)
def test_known_tokenizers_are_encoded_by_tiktoken(name: str) -> None:
    encoder = make_byte_pair_encoder(tokenizer_of(name))
    assert encoder is not None
    assert encoder.cost_s("the cat") is not None
    assert (encoder.cost_s("\u0378") is None) is (
        name == "normalised"
    )  # unassigned: what it is normalised to may change
    assert (encoder.cost_s("\u212b") is None) is (name == "normalised")
    assert encoder.cost_s("x" * (MAX_CHARS + 1)) is None


@pytest.mark.parametrize(
    "text",
    ["a" * 70_000, " " * 60_000, " " * 70_000, slow_case(" " * 2_000_000), "\n " * 20_000, "é" * 40_000, "12" * 9_000],
)
def test_long_runs_of_one_kind(text: str) -> None:
    for name in ("bundled", "digits by three"):
        assert encode(encoder_of(name), text) == expected(tokenizer_of(name), text)


def test_a_long_text() -> None:
    text = "the cat sat on 27 mats. " * 2000
    assert encode(encoder_of("bundled"), text) == expected(tokenizer_of("bundled"), text)


def test_the_turns_of_a_chat_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    encoder = PromptEncoder(tokenizer, 1 << 16)
    turns = [f"<|im_start|>user\nsay {number} é\u017f<|im_end|>\n" for number in range(10)]
    for length in range(1, 11):
        text = "".join(turns[:length])
        assert list(encoder.look_up(text).missing) == ([f"user\nsay {length - 1} é\u017f"] + ["\n"] * (length == 1))
        assert encode(encoder, text) == expected(tokenizer, text)
    assert encoder.look_up("".join(turns)).cost_s == 0


def test_a_text_of_too_many_pieces_is_left_to_the_tokenizer() -> None:
    tokenizer = make_tokenizer()
    encoder = PromptEncoder(tokenizer, 1 << 16)
    for num_cuts in (MAX_CUTS - 1, MAX_CUTS, 3 * MAX_CUTS):
        text = "".join(f"{number}<|im_end|>" for number in range(num_cuts))
        assert len(encoder.look_up(text).pieces) == (2 * num_cuts + 1 if num_cuts < MAX_CUTS else 1)
        assert encode(encoder, text) == expected(tokenizer, text)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_that_depend_on_neighbours_are_left_to_the_tokenizer(flag: str) -> None:
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


def test_tokenizers_that_may_differ_from_tiktoken_do_not_use_it() -> None:
    parts = bundled_parts()
    for changes in (
        {"pre_tokenizer": split_by(r"\p{L}++|\P{L}")},
        {"pre_tokenizer": split_by(r"\p{L}+|\p{N}+")},
        {"normalizer": {"type": "Lowercase"}},
        {"model": {**parts["model"], "merges": parts["model"]["merges"][::-1]}},
        {"model": {**parts["model"], "merges": parts["model"]["merges"][:-1]}},  # a token that no merge makes
    ):
        tokenizer = make_tokenizer(**changes)
        assert make_byte_pair_encoder(tokenizer) is None
        encoder = PromptEncoder(tokenizer, 1 << 16)
        for text in ("The cat's 12 hats.", "<|im_start|>user\nhello"):
            assert encode(encoder, text) == expected(tokenizer, text)
    metaspace = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}
    assert make_text_segments(make_tokenizer(pre_tokenizer=metaspace)) is None


def test_merges_are_ignored_where_the_tokenizer_says_so() -> None:
    model = {**bundled_parts()["model"], "ignore_merges": True}
    tokenizer = make_tokenizer(model=model)
    encoder = make_byte_pair_encoder(tokenizer)
    assert encoder is not None
    assert tokenizer.model.ignore_merges
    for text in ("The cat's 12 hats.", "returns the number of items"):
        assert encoder.encode(text) == expected(tokenizer, text)


def test_special_tokens_that_are_encoded_as_text() -> None:
    tokenizer = make_tokenizer()
    tokenizer.encode_special_tokens = True
    text = "a<|im_end|>b"
    assert encode(PromptEncoder(tokenizer, 1 << 16), text) == expected(tokenizer, text)
    assert len(expected(tokenizer, text)) > 3


def test_a_vocabulary_with_holes() -> None:
    parts = bundled_parts()
    vocabulary = {token: token_id * 3 for token, token_id in parts["model"]["vocab"].items()}
    added = [{**each, "id": each["id"] * 3} for each in parts["added_tokens"]]
    for normalizer in (None, {"type": "Lowercase"}):
        model = {**parts["model"], "vocab": vocabulary}
        tokenizer = make_tokenizer(model=model, added_tokens=added, normalizer=normalizer)
        assert encode(PromptEncoder(tokenizer, 1 << 16), "hello <|im_end|>") == expected(tokenizer, "hello <|im_end|>")


def test_entries_are_found_only_with_their_salt() -> None:
    encoder = PromptEncoder(make_tokenizer(), 1 << 16)
    for salt in ("", "a"):
        draft = encoder.look_up("a secret", salt)
        assert list(draft.missing) == ["a secret"]
        encoder.encode(draft)
        encoder.finish(draft)
        assert not encoder.look_up("a secret", salt).missing
    assert encoder.look_up("a secret", "b").missing


def test_special_tokens_around_a_prompt() -> None:
    assert find_special_token_affixes(make_tokenizer()) == SpecialTokenAffixes((), ())
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
    assert find_special_token_affixes(make_tokenizer(post_processor=template)) == SpecialTokenAffixes((1,), ())
    unknown = {token: token_id for token, token_id in bundled_parts()["model"]["vocab"].items() if len(token) > 1}
    empty = make_tokenizer(post_processor=template, model={"type": "BPE", "vocab": unknown, "merges": []})
    assert find_special_token_affixes(empty) is None  # its probes have no tokens
    bert = {"type": "BertProcessing", "sep": ["<|im_end|>", 2], "cls": ["<|im_start|>", 1]}
    assert find_special_token_affixes(make_tokenizer(post_processor=bert)) is None
