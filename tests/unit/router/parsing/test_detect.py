"""Formats of models, by their chat templates."""

import pytest

from baton.router.parsing.detect import FormatNames, detect

TEMPLATES = {
    "qwen2.5": (
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
        "hermes",
        None,
    ),
    "qwen3": ("<tool_call>\\n{\"name\": ...}</tool_call> {{- '<think>\\n\\n</think>' }}", "hermes", "qwen3"),
    "qwen3-coder": ("<tool_call>\n<function=example>\n<parameter=x>\n", "qwen3_coder", None),
    "qwen3.5": ("<tool_call>\n<function=example>\n<parameter=x>\n<think>", "qwen3_coder", "qwen3"),
    "deepseek-r1": ("<｜tool▁calls▁begin｜>...```json ... </think>", "deepseek_v3", "deepseek_r1"),
    "deepseek-v3.1": ("<｜tool▁calls▁begin｜> ... </think>", "deepseek_v31", "deepseek_v3"),
    "deepseek-v4": ("<｜DSML｜tool_calls> <think>", "deepseek_v4", "deepseek_v4"),
    "glm-4.5": ("<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value> <think>", "glm45", "glm45"),
    "kimi-k2": ("<|tool_calls_section_begin|>", "kimi_k2", None),
    "kimi-k2-thinking": ("<|tool_calls_section_begin|> <think>", "kimi_k2", "kimi_k2"),
    "minimax-m2": ("<minimax:tool_call> <think>", "minimax_m2", "minimax_m2"),
    "mistral": ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral", None),
    "magistral": ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
    "llama-3.1": ("<|python_tag|>", "llama3_json", None),
    "llama-3.2": ('Respond in the format {"name": function name, "parameters": dictionary of', "llama3_json", None),
    "llama-4": ("<|header_start|> <|python_start|> <|python_end|>", "llama4_json", None),
    "llama-4 in vLLM's examples": ("<|header_start|> Use [func_name1(param1=value1)]", "llama4_pythonic", None),
    "llama-3.2 in vLLM's examples": ("<|start_header_id|> Use [func_name1(param1=value1)]", "pythonic", None),
    "deepseek-v3.2": ("{%- set dsml_token = '｜DSML｜' -%} <think>", "deepseek_v32", "deepseek_v3"),
    "gpt-oss": ("<|start|>assistant<|channel|>analysis<|message|>", "openai", "openai_gptoss"),
    "r1-distill": ("{{ '<think>' }}", None, "deepseek_r1"),
    "no tools": ("{{ bos_token }}{{ message.content }}", None, None),
}


@pytest.mark.parametrize("model", TEMPLATES)
def test_formats_are_detected(model: str) -> None:
    template, tool_format, reasoning_format = TEMPLATES[model]
    assert detect(template) == FormatNames(tool_format, reasoning_format)
