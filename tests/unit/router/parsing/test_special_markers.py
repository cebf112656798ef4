"""Markers that are special tokens: a grammar allows each where the format has it, and nowhere else."""

import json
import random
import re
from collections.abc import Iterable, Iterator
from functools import cache
from tempfile import TemporaryDirectory

import jsonschema
import pytest
import torch

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.base import CompiledGrammar, Matcher
from baton.engine.grammar.forced_length import has_short_forced_texts
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.position import GrammarPosition
from baton.engine.grammar.xgrammar_backend import XGrammarBackend, XGrammarMatcher
from baton.router.output.format import OutputFormat
from baton.router.output.rules import NO_TOOLS, OutputRules, ToolUse
from baton.router.parsing.base import Piece, Tool
from baton.router.parsing.formats import TOOL_FORMAT_NAMES, markers, text_markers
from tests.marks import slow_case
from tests.unit.engine.grammar_rig import EOS, VOCAB_SIZE, allowed, byte_tokenizer
from tests.unit.router.parsing.outputs import Parsed, parse

REASONING_OF = {
    "openai": "openai_gptoss",
    "mistral": "mistral",
    "hermes": "qwen3",
    "kimi_k2": "kimi_k2",
    "deepseek_v31": "deepseek_v3",
}
AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["age"],
    "additionalProperties": False,
}
TOOLS = (Tool(name="fab", parameters=AGE, strict=True), Tool(name="g", parameters={}))
OTHER = "<|other|>"  # a special token that no format has
NUM_WORDS = -(-VOCAB_SIZE // 32)
MAX_TOKENS = 600
FIELDS = ("tools[0]", "tools[1]")


class Model:
    """A vocabulary in which all markers of a format are special tokens."""

    def __init__(self, name: str) -> None:
        reasoning = REASONING_OF.get(name)
        texts = [*sorted(markers(name, reasoning)), OTHER]
        tokenizer = byte_tokenizer()
        tokenizer.add_special_tokens(texts)
        self.special = {tokenizer.token_to_id(text): text for text in texts}
        known = {token_id: text for token_id, text in self.special.items() if text != OTHER}
        self.form = OutputFormat(name, reasoning, known, frozenset(known.values()))
        self.tokenizer = tokenizer
        with TemporaryDirectory() as directory:
            tokenizer.save(f"{directory}/tokenizer.json")
            self.backend = XGrammarBackend(directory, VOCAB_SIZE, frozenset({EOS}))

    def is_plain(self, token_id: int) -> bool:
        """Whether a token is text, and no part of a character."""
        return (text := self.tokenizer.decode([token_id])) != "" and "\ufffd" not in text

    def compiled(self, tools: ToolUse, given: Grammar | None = None, is_open: bool | None = None) -> CompiledGrammar:
        grammar = OutputRules(self.form, tools).grammar(given, is_open)
        assert grammar is not None
        return self.backend.compile(grammar)

    def pieces(self, token_ids: list[int]) -> list[Piece]:
        return [
            Piece(self.special[each], self.special[each])
            if each in self.special
            else Piece(self.tokenizer.decode([each]))
            for each in token_ids
        ]

    def parsed(self, token_ids: list[int], with_tools: bool = True, is_open: bool | None = None) -> Parsed:
        form = self.form
        return parse(
            self.pieces(token_ids),
            form.calls if with_tools else None,
            form.reasoning,
            TOOLS,
            form.single_tokens,
            is_open,
        )


@cache
def model(name: str) -> Model:
    return Model(name)


def accepted(matcher: Matcher, token_ids: Iterable[int]) -> set[int]:
    """Return the tokens that a matcher accepts, without effect on it."""
    assert isinstance(matcher, XGrammarMatcher)
    found = set()
    for each in token_ids:
        if matcher.accept(each):
            matcher._matcher.rollback(1)
            found.add(each)
    return found


def walks(of: Model, compiled: CompiledGrammar, num_walks: int) -> Iterator[list[int]]:
    """Yield the tokens of outputs that end, from random walks over the masks of whole characters.

    Checks that each mask has the special tokens that the matcher accepts, and no others.
    """
    row = torch.zeros(NUM_WORDS, dtype=torch.int32)
    closing = {of.tokenizer.token_to_id(each) for each in ('"', "}", "]", '"}')}
    for seed in range(num_walks):
        rng, matcher, output = random.Random(seed), compiled.matcher(frozenset({EOS})), list[int]()
        marker_weight = rng.choice((1, 40))
        for _ in range(MAX_TOKENS):
            matcher.fill(row)
            assert {each for each in allowed(row) if each in of.special} == accepted(matcher, of.special)
            options = [each for each in allowed(row) if each == EOS or each in of.special or of.is_plain(each)]
            weights = [
                99 if each == EOS else 40 if each in closing else marker_weight if each in of.special else 1
                for each in options
            ]
            [token_id] = rng.choices(options, weights)
            assert matcher.accept(token_id)
            if token_id == EOS:
                yield output
                break
            output.append(token_id)


def use(required: bool, parallel: bool = True) -> ToolUse:
    return ToolUse(offered=TOOLS, fields=FIELDS, is_required=required, is_parallel=parallel)


ENFORCEABLE = [name for name in TOOL_FORMAT_NAMES if not text_markers(name)]


@pytest.mark.parametrize("name", ENFORCEABLE)
def test_required_calls(name: str) -> None:
    of, num_calls = model(name), []
    for output in walks(of, of.compiled(use(True)), 8):
        parsed = of.parsed(output)
        assert parsed.calls, output
        assert parsed.content == ""
        num_calls.append(len(parsed.calls))
        for call in parsed.calls:
            assert call.is_valid
            jsonschema.validate(json.loads(call.arguments), AGE if call.name == "fab" else {"type": "object"})
    assert len(num_calls) >= 3


@pytest.mark.parametrize("name", ENFORCEABLE)
def test_text_with_calls(name: str) -> None:
    of, num_outputs, num_calls = model(name), 0, 0
    for output in walks(of, of.compiled(use(False)), 10):
        num_outputs += 1
        for call in of.parsed(output).calls:
            num_calls += 1
            assert call.is_valid
            if call.name == "fab":
                jsonschema.validate(json.loads(call.arguments), AGE)
    assert num_outputs >= 3
    assert num_calls >= (name in ("hermes", "mistral", "deepseek_v3", "deepseek_v31", "kimi_k2"))  # not at random


@pytest.mark.parametrize("name", ["openai", "mistral", "hermes", "kimi_k2"])
@pytest.mark.parametrize("is_open", [slow_case(None), True])
def test_structured_output_behind_reasoning(name: str, is_open: bool | None) -> None:
    """The content may be anything but `x`, and begins like a marker: no special token is part of it."""
    of, given = model(name), Grammar(GrammarKind.REGEX, "ab[^x]{3,9}", field="regex")
    num_outputs = num_thoughts = 0
    for output in walks(of, of.compiled(NO_TOOLS, given, is_open), 10):
        parsed = of.parsed(output, with_tools=False, is_open=is_open)
        assert parsed.content.lstrip("\n").startswith("ab")
        assert "x" not in parsed.content
        num_outputs += 1
        num_thoughts += bool(parsed.reasoning)
    assert num_outputs >= 4
    assert num_thoughts >= 1


def test_harmony_has_structured_output_or_calls() -> None:
    of, given = model("openai"), Grammar(GrammarKind.REGEX, "ab[^x]{3,9}", field="regex")
    kinds = set[bool]()
    for output in walks(of, of.compiled(use(False), given), 12):
        parsed = of.parsed(output)
        assert parsed.content.startswith("ab") is not bool(parsed.calls)
        assert all(call.is_valid for call in parsed.calls)
        kinds.add(bool(parsed.calls))
    assert kinds == {False, True}


def test_content_or_a_call_that_begins_like_it() -> None:
    of, given = model("mistral"), Grammar(GrammarKind.CHOICE, '["[TOOL_CALLS]is text", "other"]', field="choice")
    compiled = of.compiled(use(False), given, is_open=False)
    texts = {"".join(piece.text for piece in of.pieces(output)) for output in walks(of, compiled, 24)}
    assert {"[TOOL_CALLS]is text", "other"} & texts
    assert any(text.startswith("[TOOL_CALLS]fab[ARGS]") for text in texts)
    spelled = [of.tokenizer.token_to_id(each) for each in "[TOOL_CALLS]"]
    matcher = compiled.matcher(frozenset({EOS}))
    assert all(map(matcher.accept, spelled))  # the content of the choice
    assert not accepted(matcher, of.special)
    assert matcher.forced_text() == "is text"


@pytest.mark.parametrize("name", ["openai", "mistral", "hermes", "kimi_k2", "deepseek_v3"])
def test_positions_are_functions_of_the_tokens(name: str) -> None:
    of = model(name)
    compiled = of.compiled(use(True, parallel=False), is_open=False)

    def position() -> GrammarPosition:
        return GrammarPosition(compiled.matcher(frozenset({EOS})), of.backend.forced_token, NUM_WORDS, [EOS], 0)

    one_by_one, output, rng = position(), list[int](), random.Random(1)
    num_forced = num_forced_markers = 0
    one_by_one.advance([])
    while True:
        assert len(output) < MAX_TOKENS
        num_forced += bool(one_by_one.forced)
        options = allowed(one_by_one.row)
        if EOS in options:
            break
        preferred = [each for each in options if each in of.special or of.tokenizer.decode([each]) in ("}", '"', '"}')]
        output.append(rng.choice(preferred or options))
        num_forced_markers += bool(one_by_one.forced) and output[-1] in of.special
        one_by_one.advance(output[-1:])
        moved = position()
        moved.advance(output)
        assert torch.equal(moved.row, one_by_one.row), output
        assert list(moved.forced)[: len(one_by_one.forced)] == list(one_by_one.forced)
    assert num_forced > 2
    assert num_forced_markers >= 1
    assert of.parsed(output).calls


def test_a_token_in_place_of_a_text_is_not_overlooked() -> None:
    of = model("mistral")
    token = {"type": "token", "token": "[TOOL_CALLS]"}
    inner = {"type": "sequence", "elements": [{"type": "const_string", "value": "abc"}, token]}
    text = {"type": "const_string", "value": "abcdef" * 3}
    source = json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": [text, inner]}})
    grammar = Grammar(GrammarKind.STRUCTURAL_TAG, source)
    assert not has_short_forced_texts(grammar)  # so the text, in which the backend sees no choice, is not forced
    matcher = of.backend.compile(grammar).matcher(frozenset({EOS}))
    assert all(map(matcher.accept, map(of.tokenizer.token_to_id, "abc")))
    assert accepted(matcher, of.special) == {of.tokenizer.token_to_id("[TOOL_CALLS]")}
    assert matcher.accept(of.tokenizer.token_to_id("d"))


@pytest.mark.parametrize("token", ["<none>", 1 << 30, -1, True, None, 2.5])
def test_tokens_that_the_vocabulary_does_not_have(token: object) -> None:
    for form in ({"type": "token", "token": token}, {"type": "any_tokens", "exclude_tokens": [token]}):
        source = json.dumps({"type": "structural_tag", "format": form})
        with pytest.raises(InvalidRequest, match="the vocabulary has no token"):
            model("mistral").backend.compile(Grammar(GrammarKind.STRUCTURAL_TAG, source))


@pytest.mark.slow
def test_special_tokens_are_in_no_text_of_any_kind() -> None:
    """Formats for free text allow any bytes, but a special token only where it is named."""
    of = model("mistral")
    named = {"type": "token", "token": "[TOOL_CALLS]"}
    tag = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": AGE}, "end": "</f>"}
    for form in (
        {"type": "any_text"},
        {"type": "any_text", "excludes": ["ab"]},
        {"type": "triggered_tags", "triggers": ["<f>"], "tags": [tag]},
        {"type": "dispatch", "rules": [["ab", {"type": "const_string", "value": "c"}]]},
        {"type": "json_schema", "json_schema": AGE, "style": "glm_xml"},
        {"type": "json_schema", "json_schema": AGE, "excludes": ["<f>"]},
        {"type": "qwen_xml_parameter", "json_schema": AGE},
        {"type": "regex", "pattern": "[^a]+"},
        {"type": "grammar", "grammar": f"root ::= Token({of.tokenizer.token_to_id(OTHER)}) [^a]+ | [^a]+"},
    ):
        source = {"type": "structural_tag", "format": {"type": "sequence", "elements": [named, form, named]}}
        compiled = of.backend.compile(Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(source)))
        marker = of.tokenizer.token_to_id("[TOOL_CALLS]")
        for output in walks(of, compiled, 4):
            assert [each for each in output if each in of.special] == [marker, marker]


def test_lengths_of_values_like_xml_count_next_to_special_tokens() -> None:
    of = model("mistral")
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": schema, "style": "glm_xml"}
    named = {"type": "token", "token": "[TOOL_CALLS]"}
    source = {"type": "structural_tag", "format": {"type": "sequence", "elements": [named, form]}}
    compiled = of.backend.compile(Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(source)))
    for output in walks(of, compiled, 6):
        text = "".join(piece.text for piece in of.pieces(output[1:]))
        assert re.fullmatch(r"\s*<arg_key>a</arg_key>\s*<arg_value>\s*[^<]{0,3}\s*</arg_value>\s*", text), text
