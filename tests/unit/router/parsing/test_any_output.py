"""What holds for every output, in all formats."""

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.router.parsing.base import Content, OutputPart, Piece, Reasoning
from baton.router.parsing.formats import TOOL_FORMAT_NAMES, make_parser, markers
from tests.marks import slow_except
from tests.unit.router.parsing.arbitrary_outputs import TOOLS, formats, outputs
from tests.unit.router.parsing.outputs import Parsed, joined, parse, pieces_of

OPENAI = "openai"
USUAL = ("hermes", "pythonic", "mistral", "deepseek_v32", "glm45", OPENAI)
FAST = settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def parts_of(pieces: list[Piece], tool: str | None, reasoning: str | None, single: frozenset[str]) -> list[OutputPart]:
    parser = make_parser(tool, reasoning, TOOLS, single)
    return [*parser.push(pieces), *parser.flush()]


@FAST
@given(st.data())
def test_parts_do_not_depend_on_the_pieces(data: st.DataObject) -> None:
    tool, reasoning = data.draw(formats())
    text = data.draw(outputs(tool, reasoning))
    single = frozenset(data.draw(st.sets(st.sampled_from(sorted(markers(tool, reasoning)) or [""])))) - {""}
    pieces = pieces_of(text, single)
    whole = joined(parts_of(pieces, tool, reasoning, single))
    for size in (1, data.draw(st.integers(2, 9))):
        cut = pieces_of(text, single, size)
        assert parse(cut, tool, reasoning, TOOLS, single, pieces_per_push=data.draw(st.integers(1, 3))) == whole


@FAST
@given(st.data())
def test_nothing_is_lost_without_calls(data: st.DataObject) -> None:
    """The texts, with markers and white space between them, are the output."""
    tool, reasoning = data.draw(formats())
    text = data.draw(outputs(tool, reasoning))
    parsed = parse(pieces_of(text), tool, reasoning, TOOLS)
    if OPENAI in (tool, reasoning) or reasoning == "openai_gptoss" or parsed.calls:
        return
    before, content, after = text.rpartition(parsed.content) if parsed.content else (text, "", "")
    first, thoughts, second = before.partition(parsed.reasoning) if parsed.reasoning else (before, "", "")
    assert (thoughts, content) == (parsed.reasoning, parsed.content)
    begin, end = ("[THINK]", "[/THINK]") if reasoning == "mistral" else ("<think>", "</think>")
    between = "".join(f"{first}{second}{after}".split())
    assert between in (("", begin, end, begin + end) if reasoning is not None else ("",))
    if reasoning is None:
        assert parsed.content == text


@FAST
@given(st.data())
def test_content_and_reasoning_are_in_the_output_in_its_order(data: st.DataObject) -> None:
    tool, reasoning = data.draw(formats())
    text = data.draw(outputs(tool, reasoning))
    parser = make_parser(tool, reasoning, TOOLS)
    characters = iter(text)
    for part in [*parser.push(pieces_of(text)), *parser.flush()]:
        if isinstance(part, Content | Reasoning):
            # Line breaks apart: Harmony separates messages by them.
            assert all(char in characters for char in part.text if char != "\n")


def _is_fast(text: str, size: int, tool: str) -> bool:
    """Return whether an output takes less than a second, or less than three times as long as half of it."""
    whole_s = _parse_s(text, size, tool)
    return whole_s < 1 or whole_s < 3 * _parse_s(text[: len(text) // 2], size, tool)


def _parse_s(text: str, size: int, tool: str) -> float:
    started_s = time.thread_time()
    parse(pieces_of(text, frozenset(), size), tool, None, TOOLS)
    return time.thread_time() - started_s


@pytest.mark.parametrize("tool", slow_except(TOOL_FORMAT_NAMES, USUAL))
def test_adversarial_outputs_take_linear_time(tool: str) -> None:
    known = sorted(markers(tool, None))
    starts = ["", *known, '<tool_call>{"name": "f", "arguments": {"a": "', "[f(a=[", "<function=f>\n<parameter=a>"]
    repeated = [*known, *(each[:-1] or each for each in known), '{"', "[<", "\n", '{"name":"f",', "[f(", "'\\"]
    texts = [start + unit * (8_000 // len(unit)) for start in starts for unit in repeated]
    for text in random.Random(0).sample(texts, 12):
        for size in (1, len(text)):
            assert any(_is_fast(text, size, tool) for _ in range(3))  # a busy machine may double the time of one try


@pytest.mark.slow
def test_a_megabyte_takes_a_second() -> None:
    texts = {
        "hermes": '<tool_call>{"name": "f", "arguments": {"a": "' + "{<tool_call" * 90_000,
        "qwen3_coder": "<function=f>\n<parameter=a>" + "</parameter" * 90_000,
        "pythonic": "[f(a=" + "[" * 1_000_000,
        "openai": "<|channel|>a b" * 75_000,
        "mistral": "[TOOL_CALLS]f[ARGS]{" * 50_000,
    }
    for tool, text in texts.items():
        started_s = time.process_time()
        parsed = parse(pieces_of(text), tool, None, TOOLS)
        assert time.process_time() - started_s < 2
        assert parsed != Parsed()
