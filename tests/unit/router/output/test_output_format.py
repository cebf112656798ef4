"""Which formats a router parses, and where prompts end."""

import logging
from pathlib import Path

import pytest

from baton.router.config import RouterConfig
from baton.router.model_options import ModelOptions
from baton.router.output.format import OutputFormat, find_output_format
from baton.router.text.tokenizer import Tokenizer
from baton.settings.config_file import load
from baton.settings.values import OptionError
from tests.unit.router.output.test_output_parts import MARKERS, with_markers
from tests.unit.router.rigs.running_router import MODEL

QWEN = "{{ '<think>' }}{{ '<tool_call>' }}{{ '\"arguments\"' }}"


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    directory = with_markers(tmp_path)
    (directory / "chat_template.jinja").write_text(QWEN)
    return str(directory)


def found(model: str, **options: str) -> OutputFormat:
    tokenizer = Tokenizer(model)
    try:
        return find_output_format(ModelOptions(model, "model", **options), tokenizer)
    finally:
        tokenizer.close()


def test_formats_are_found_in_the_chat_template(qwen: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        form = found(qwen)
    assert (form.calls, form.reasoning) == ("hermes", "qwen3")
    assert set(form.markers.values()) == set(MARKERS)
    assert form.special == frozenset(MARKERS)
    assert "format of tool calls of model: hermes, found in the chat template" in caplog.text
    assert "format of reasoning of model: qwen3, found in the chat template" in caplog.text


def test_options_take_precedence(qwen: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        form = found(qwen, tool_call_parser="none", reasoning_parser="deepseek_r1")
    assert (form.calls, form.reasoning) == (None, "deepseek_r1")
    assert set(form.markers.values()) == {"<think>", "</think>"}
    assert "format of tool calls of model: none, not parsed" in caplog.text
    assert "format of reasoning of model: deepseek_r1, set by an option" in caplog.text


def test_a_template_without_a_format_has_none(qwen: str) -> None:
    (Path(qwen) / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    form = found(qwen)
    assert (form.calls, form.reasoning, form.markers) == (None, None, {})
    form = found(MODEL, reasoning_parser="qwen3")
    assert (form.calls, set(form.markers.values())) == ("hermes", {"<tool_call>", "</tool_call>"})  # <think> is text


def test_unknown_formats_are_refused() -> None:
    for name in ("tool-call-parser", "reasoning-parser"):
        with pytest.raises(OptionError, match=f"--{name}: 'morse' is not allowed; it must be one of .*, none"):
            load(RouterConfig, None, {"model": MODEL, name.replace("-", "_"): "morse"})


def test_formats_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(OptionError, match="reasoning_parser: the reasoning parser openai_gptoss needs"):
        found(MODEL, tool_call_parser="hermes", reasoning_parser="openai_gptoss")


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n", None),
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nWhat does <think> mean?<|im_end|>\n<|im_start|>assistant\n", None),
        ("a" * 10_000 + "<think>", True),
    ],
)
def test_where_a_prompt_ends(prompt: str, is_open: bool | None) -> None:
    assert OutputFormat(None, "qwen3", {}).is_reasoning_open(prompt) is is_open
    assert OutputFormat("hermes", None, {}).is_reasoning_open(prompt) is None
