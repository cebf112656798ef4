"""Structural tags: what they let through are valid calls for the parser of the same format."""

import functools
import json
import random
from collections.abc import Iterator

import jsonschema
import pytest
import torch
import xgrammar

from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.schema.rewrite import compilable_tag
from baton.router.parsing.base import Tool
from baton.router.parsing.formats import TOOL_FORMAT_NAMES, markers, output_tag, response_tag
from baton.router.parsing.structural_tag import Format
from tests.marks import each_value, slow_case
from tests.unit.router.parsing.outputs import Parsed, parse, pieces_of

TOOLS = (
    Tool(
        name="fa",
        parameters={
            "type": "object",
            "properties": {
                "x": {"type": "integer"},
                "y": {"type": "string"},
                "z": {"enum": ["a", "b"]},
                "p": {"type": "string", "pattern": "^[a-z]{1,3}$"},
                "m": {"type": "string", "maxLength": 14},
                "d": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
                "s": {"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 2},
            },
            "required": ["x"],
            "additionalProperties": False,
        },
        strict=True,
    ),
    Tool(
        name="gb", parameters={"type": "object", "properties": {"l": {"type": "array", "items": {"type": "boolean"}}}}
    ),
    Tool(name="h_c", parameters={}),
)
REASONING_OF = {"hermes": "qwen3", "deepseek_v31": "deepseek_r1", "kimi_k2": "kimi_k2", "mistral": "mistral"}
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n▁｜"
CLOSING = frozenset('"}])>')
STOP = 0
MAX_TOKENS = 400


def test_every_format_is_tested_below() -> None:
    assert set(REASONING_OF) < set(TOOL_FORMAT_NAMES)


@functools.cache
def vocabulary(tool_format: str, reasoning: str | None) -> list[str]:
    words = {
        *markers(tool_format, reasoning),
        *(
            "true",
            "false",
            "null",
            "function",
            "functions.",
            "parameter",
            "parameters",
            "name",
            "arguments",
            "json",
            "to=",
        ),
        *(
            "assistant",
            "commentary",
            "analysis",
            "final",
            "invoke",
            "string",
            "DSML",
            "｜",
            "```",
            "-",
            "tool_call",
            "minimax",
        ),
    }
    return ["", *CHARACTERS, *sorted(words - set(CHARACTERS))]


@functools.cache
def compiler(tool_format: str, reasoning: str | None) -> xgrammar.GrammarCompiler:
    texts = [each.encode() for each in vocabulary(tool_format, reasoning)]
    texts[STOP] = b"</s>"
    info = xgrammar.TokenizerInfo(texts, xgrammar.VocabType.RAW, vocab_size=len(texts), stop_token_ids=[STOP])
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compiled(tag: Format, tool_format: str, reasoning: str | None) -> xgrammar.CompiledGrammar:
    """Compile a tag as the engine does."""
    Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(tag)).validate()
    return compiler(tool_format, reasoning).compile_structural_tag(json.dumps(compilable_tag(tag)))


def walks(grammar: xgrammar.CompiledGrammar, texts: list[str], num_walks: int) -> Iterator[str]:
    """Yield outputs that end, from random walks over the masks."""
    row = torch.zeros(1, -(-len(texts) // 32), dtype=torch.int32)
    for seed in range(num_walks):
        rng = random.Random(seed)
        matcher, output = xgrammar.GrammarMatcher(grammar), ""
        for _ in range(MAX_TOKENS):
            matcher.fill_next_token_bitmask(row)
            allowed = [place for place in range(len(texts)) if int(row[0, place // 32]) >> (place % 32) & 1]
            weights = [
                30 if place == STOP else 6 if texts[place] in CLOSING or len(texts[place]) > 4 else 1
                for place in allowed
            ]
            (token,) = rng.choices(allowed, weights)
            assert matcher.accept_token(token)
            if token == STOP:
                yield output
                break
            output += texts[token]


def check_calls(parsed: Parsed) -> None:
    tools = {tool.name: tool for tool in TOOLS}
    for call in parsed.calls:
        assert call.is_valid
        jsonschema.validate(json.loads(call.arguments), dict(tools[call.name].parameters))


@pytest.mark.parametrize("parallel", [slow_case(False), True])
@pytest.mark.parametrize("name", TOOL_FORMAT_NAMES)
def test_required_calls_are_valid_and_nothing_else_is_written(name: str, parallel: bool) -> None:
    tag = output_tag(name, None, TOOLS, required=True, parallel=parallel)
    grammar = compiled(tag, name, None)
    num_calls = []
    for text in walks(grammar, vocabulary(name, None), 12):
        for single in (frozenset[str](), markers(name, None)):
            parsed = parse(pieces_of(text, single), name, None, TOOLS, single)
            assert parsed.calls, text
            assert parsed.content == "", text
            check_calls(parsed)
            num_calls.append(len(parsed.calls))
    assert len(num_calls) >= 4
    assert max(num_calls) == 1 or parallel


@pytest.mark.parametrize("name", TOOL_FORMAT_NAMES)
def test_text_may_contain_calls(name: str) -> None:
    grammar = compiled(output_tag(name, None, TOOLS, required=False, parallel=True), name, None)
    matcher = xgrammar.GrammarMatcher(grammar)
    assert matcher.accept_string("<|channel|>final<|message|>ab c" if name == "openai" else "ab c")
    assert matcher.accept_token(STOP)
    num_outputs = 0
    for text in walks(grammar, vocabulary(name, None), 8):
        for call in parse(pieces_of(text), name, None, TOOLS).calls:
            assert call.is_valid
            tool = next(tool for tool in TOOLS if tool.name == call.name)
            if tool.strict:
                jsonschema.validate(json.loads(call.arguments), dict(tool.parameters))
        num_outputs += 1
    assert num_outputs >= 4


@each_value
@pytest.mark.parametrize("is_open", [None, slow_case(False), True])
@pytest.mark.parametrize("name", REASONING_OF)
def test_reasoning_comes_before_required_calls(name: str, is_open: bool | None) -> None:
    reasoning = REASONING_OF[name]
    tag = output_tag(name, reasoning, TOOLS, required=True, parallel=False, is_reasoning_open=is_open)
    num_outputs = 0
    for text in walks(compiled(tag, name, reasoning), vocabulary(name, reasoning), 8):
        parsed = parse(pieces_of(text), name, reasoning, TOOLS, is_reasoning_open=is_open)
        assert (len(parsed.calls), parsed.content) == (1, ""), text
        check_calls(parsed)
        num_outputs += 1
    assert num_outputs >= 3


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1", "openai_gptoss"])
def test_a_response_format_counts_after_the_reasoning(name: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tag = response_tag(name, {"type": "json_schema", "json_schema": schema})
    tool_format = "openai" if name == "openai_gptoss" else "hermes"
    reasoning = None if name == "openai_gptoss" else name
    num_outputs = 0
    for text in walks(compiled(tag, tool_format, reasoning), vocabulary(tool_format, reasoning), 12):
        jsonschema.validate(json.loads(parse(pieces_of(text), None, name).content), schema)
        num_outputs += 1
    assert num_outputs >= 3


def test_calls_need_tools() -> None:
    with pytest.raises(ValueError, match="needs one or more tools"):
        output_tag("hermes", None, (), required=True, parallel=True)
