"""Forced texts are used only if they are known to be short."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import InvalidRequest
from baton.engine.grammar.cost import is_cheap
from baton.engine.grammar.forced_length import MAX_CHARS, has_short_forced_texts
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.checkpoints import make_checkpoint
from tests.unit.engine.grammar_rig import backend, byte_tokenizer, schema_grammar, steps


def tag(*elements: Any) -> Grammar:
    parts = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    return Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(parts))


def doubled(levels: int) -> dict[str, Any]:
    """A schema whose values have 2^levels texts, which are all the same."""
    twice = [{"$ref": f"#/$defs/{level + 1}"} for level in range(levels) for _ in range(2)]
    pairs = {
        str(level): {"type": "array", "prefixItems": twice[2 * level : 2 * level + 2], "minItems": 2, "items": False}
        for level in range(levels)
    }
    return {"$ref": "#/$defs/0", "$defs": {**pairs, str(levels): {"const": "abc"}}}


CONSTANT = {"type": "const_string", "value": "abc"}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 3}, "friends": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["name", "friends"],
}
SHORT = [
    Grammar(GrammarKind.JSON_OBJECT),
    Grammar(GrammarKind.CHOICE, json.dumps(["a" * 1000, "b"])),
    Grammar(GrammarKind.REGEX, "(ab{10}){20}c*"),
    schema_grammar(PERSON),
    schema_grammar(doubled(4)),
    schema_grammar({"type": "array", "items": {"enum": ["long" * 100, "b"]}, "minItems": 100}),
    schema_grammar({"type": "string", "maxLength": 1 << 20}),
    tag(CONSTANT, {"type": "json_schema", "json_schema": PERSON}),
    tag({"type": "any_text", "excludes": ["a"]}, {"type": "regex", "pattern": "a{100}"}),
]
LONG = [
    Grammar(GrammarKind.EBNF, 'root ::= "a" root'),
    Grammar(GrammarKind.REGEX, "a{999999999}"),
    Grammar(GrammarKind.REGEX, "((a{100}){100}){100}"),
    Grammar(GrammarKind.REGEX, "x|y(a{ 1000000 , })"),
    schema_grammar(doubled(30)),
    schema_grammar({"type": "array", "items": {"const": 1}, "minItems": 1_000_000}),
    schema_grammar({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^a{1000000}$"}]}),
    tag({"type": "json_schema", "json_schema": {"type": "string", "pattern": "^a{1000000}$"}}),
    tag({"type": "regex", "pattern": "a{1000000}"}),
    tag({"type": "grammar", "grammar": 'root ::= "a"'}),
    tag({"type": "repeat", "min": 32, "max": 32, "content": CONSTANT}),
    tag({"type": "star", "content": CONSTANT}),
    tag({"type": "plus", "content": CONSTANT}),
    tag({"type": "any_tokens"}, CONSTANT),
    tag({"type": "star", "content": {"type": "exclude_token", "exclude_tokens": [9]}}, CONSTANT),
    tag({"type": "token", "token": 9}, CONSTANT),
]


@pytest.mark.parametrize("grammar", SHORT, ids=lambda grammar: grammar.source[:60])
def test_texts_that_are_known_to_be_short(tmp_path: Path, grammar: Grammar) -> None:
    grammar.check()
    assert has_short_forced_texts(grammar)
    matcher = backend(tmp_path).compile(grammar).matcher(frozenset({2}))
    assert len(matcher.forced_text()) <= MAX_CHARS


@pytest.mark.parametrize("grammar", LONG, ids=lambda grammar: grammar.source[:60])
def test_texts_that_may_be_long(grammar: Grammar) -> None:
    grammar.check()
    assert not has_short_forced_texts(grammar)


def test_a_text_without_an_end_is_generated_token_by_token(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model", tokenizer=byte_tokenizer())
    config = EngineConfig(model=str(model), dtype="float32", num_threads=1, block_size=4, max_num_seqs=4,
                          max_num_batched_tokens=16, kv_cache_memory_bytes=1 << 20)  # fmt: skip
    engine = Engine(config)
    sampling = SamplingParams(max_tokens=20, grammar=LONG[0])
    request = Request(RequestId("a"), [5, 6, 7], 3, sampling)
    engine.add(request)
    for _ in steps(engine):
        pass
    assert request.finish_reason is FinishReason.LENGTH
    assert byte_tokenizer().decode(request.token_ids[3:]) == "a" * 20


@pytest.mark.parametrize("kind", ["any_text", "any_tokens"])
def test_budgets_of_tokens_are_refused(kind: str) -> None:
    with pytest.raises(InvalidRequest, match=r"format.elements\[0\]: max_tokens in a structural tag is not supported"):
        tag({"type": kind, "max_tokens": 4}, CONSTANT).validate()


HUGE = [
    Grammar(GrammarKind.REGEX, f"a{{{'9' * 5000}}}"),
    Grammar(GrammarKind.REGEX, "a{1,4294967299}"),  # compiled as a{1,3}
    Grammar(GrammarKind.EBNF, 'root ::= "a"{1, 4294967299}'),
    schema_grammar({"type": "string", "pattern": "^" + "[{9999999999999999}]" * 25 + "$"}),
    schema_grammar({"type": "string", "minLength": 10**399}),
    schema_grammar({"type": "array", "items": {"type": "array", "items": {}, "minItems": 10**399}}),
    schema_grammar({"type": "object", "maxProperties": 4294967299}),
    tag({"type": "repeat", "min": 0, "max": 4294967299, "content": CONSTANT}),
    tag({"type": "regex", "pattern": "a{4294967299}"}),
    tag({"type": "grammar", "grammar": 'root ::= "a"{4294967299}'}),
]


@pytest.mark.parametrize("grammar", HUGE, ids=lambda grammar: grammar.source[:60])
def test_huge_counts_are_refused_and_are_no_fault(grammar: Grammar) -> None:
    with pytest.raises(ValueError, match=r"has over 9 digits|must be at most 1000000000"):
        grammar.check()
    has_short_forced_texts(grammar)
    is_cheap(grammar)


def test_numbers_with_many_digits() -> None:
    nines = "9" * 5000
    schema_grammar({"$ref": f"#/a/{nines}", "a": []}).check()
    with pytest.raises(ValueError, match="a number of 5000 digits, over the limit of 4000"):
        Grammar(GrammarKind.JSON_SCHEMA, f'{{"const": {nines}}}').check()
