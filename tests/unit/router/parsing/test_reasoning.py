"""Reasoning in front of the content."""

import pytest

from baton.router.parsing.formats import is_reasoning_open, markers
from tests.unit.router.parsing.outputs import Parsed, parse_all_ways

CASES = [
    # format, whether the prompt leaves the reasoning open, output, parts
    ("deepseek_r1", None, "I think\n</think>\n\nHi", Parsed("Hi", [], "I think")),
    ("deepseek_r1", None, "<think>\n  I think</think>Hi\n", Parsed("Hi\n", [], "  I think")),
    ("deepseek_r1", None, "I think\n", Parsed("", [], "I think\n")),
    ("deepseek_r1", None, "a </think> b </think> <think> c", Parsed(" b </think> <think> c", [], "a")),
    ("deepseek_r1", False, "\nHi </think>", Parsed("\nHi </think>")),
    ("deepseek_r1", None, "</think>Hi", Parsed("Hi")),
    ("qwen3", None, "<think>\n\n</think>\n\nHi", Parsed("Hi")),
    ("qwen3", None, "\n <think>a</think>\n\n    Hi", Parsed("    Hi", [], "a")),
    ("qwen3", None, "\n\nHi <think>a</think>", Parsed("\n\nHi <think>a</think>")),
    ("qwen3", True, "a</think>Hi", Parsed("Hi", [], "a")),
    ("qwen3", True, "a <thi", Parsed("", [], "a <thi")),
    ("qwen3", None, "<thi", Parsed("<thi")),
    ("qwen3", None, "<think>a<think>b</think>", Parsed("", [], "a<think>b")),
    ("qwen3", None, "\n", Parsed("\n")),
    ("minimax_m2", None, "a\n</think>\n\nHi", Parsed("Hi", [], "a")),
    ("mistral", None, "[THINK]a[/THINK]Hi", Parsed("Hi", [], "a")),
    ("mistral", None, "Hi [THINK]a", Parsed("Hi [THINK]a")),
    ("glm45", None, "\n<think>a</think>\nHi", Parsed("Hi", [], "a")),
    ("openai_gptoss", None, "<|channel|>analysis<|message|>a<|end|>", Parsed("", [], "a")),
]


@pytest.mark.parametrize(("name", "is_open", "text", "expected"), CASES)
def test_outputs(name: str, is_open: bool | None, text: str, expected: Parsed) -> None:
    assert parse_all_ways(text, None, name, (), markers(None, name), is_open) == expected


def test_the_prompt_says_whether_the_reasoning_is_open() -> None:
    assert is_reasoning_open("qwen3", "<|im_start|>assistant\n<think>\n") is True
    assert is_reasoning_open("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n") is False
    assert is_reasoning_open("qwen3", "<think>a</think>b<|im_end|>\n<|im_start|>assistant\n") is None
    assert is_reasoning_open("openai_gptoss", "<|start|>assistant") is None
    for end, is_open in (
        ("<|start|>assistant<|channel|>final<|message|>The", False),
        ("a long answer", False),
        ("<|start|>assistant<|channel|>final<|message|>The<|end|><|start|>assistant", None),
        ("<|start|>assistant<|channel|>analysis<|message|>The", None),
        ("nnel|>final<|message|>The", False),
        ("<|channel|>final<|message|>The<|end|><|start|>user<|message|>Yes", None),
    ):
        assert is_reasoning_open("openai_gptoss", end) is is_open
    assert is_reasoning_open(None, "<think>") is None
