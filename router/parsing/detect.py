"""Which formats a model writes, by the markers in its chat template."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FormatNames:
    """Names of a model's formats; None: it has none that is known."""

    tool_format: str | None
    reasoning_format: str | None


@dataclass(frozen=True, slots=True)
class _Rule:
    """A model family, recognized by texts that are all in its chat template."""

    texts: tuple[str, ...]
    tool_format: str | None
    reasoning_format: str | None = None


# The first rule that applies counts: those of one family in front of those that share its markers.
_RULES = (
    _Rule(("<|channel|>", "<|message|>"), "openai", "openai_gptoss"),
    _Rule(("<minimax:tool_call>",), "minimax_m2", "minimax_m2"),
    _Rule(("<|tool_calls_section_begin|>",), "kimi_k2", "kimi_k2"),
    _Rule(("｜DSML｜", "tool_calls>"), "deepseek_v4", "deepseek_v4"),
    _Rule(("｜DSML｜",), "deepseek_v32", "deepseek_v3"),
    _Rule(("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3", "deepseek_r1"),
    _Rule(("<｜tool▁calls▁begin｜>",), "deepseek_v31", "deepseek_v3"),
    _Rule(("<arg_key>", "<arg_value>"), "glm45", "glm45"),
    _Rule(("<function=", "<parameter=", "<tool_call>"), "qwen3_coder", "qwen3"),
    _Rule(("[TOOL_CALLS]",), "mistral", "mistral"),
    _Rule(("[func_name1(", "<|header_start|>"), "llama4_pythonic"),
    _Rule(("[func_name1(",), "pythonic"),
    _Rule(("<|python_start|>",), "llama4_json"),
    _Rule(("<tool_call>",), "hermes", "qwen3"),
    _Rule(("<|python_tag|>",), "llama3_json"),
    _Rule(('{"name": function name, "parameters": dictionary',), "llama3_json"),
    _Rule(("<think>",), None, "deepseek_r1"),
)
# A family's older models have the same calls, but no reasoning: its markers are then not in the template.
_REASONING_MARKERS = {
    "openai_gptoss": "<|channel|>",
    "mistral": "[THINK]",
}


def detect(chat_template: str) -> FormatNames:
    """Return the names of the formats of the model with this chat template, a Jinja source."""
    for rule in _RULES:
        if all(text in chat_template for text in rule.texts):
            reasoning = rule.reasoning_format
            if reasoning is not None and _REASONING_MARKERS.get(reasoning, "think>") not in chat_template:
                reasoning = None
            return FormatNames(rule.tool_format, reasoning)
    return FormatNames(None, None)
