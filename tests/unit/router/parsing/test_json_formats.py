"""Calls in JSON, in the formats of DeepSeek, Kimi, Mistral and Llama; calls in Python; Harmony."""

import pytest

from baton.router.parsing.base import Tool
from baton.router.parsing.formats import markers
from tests.unit.router.parsing.outputs import Call, Parsed, parse_all_ways

F, G = Call("f", '{"x": [1, "}"]}'), Call("g", "{}")
V3_F = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"x": [1, "}"]}\n```<｜tool▁call▁end｜>'
V3_G = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
V31_F = '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": [1, "}"]}<｜tool▁call▁end｜>'
V31_G = "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
KIMI_F = '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": [1, "}"]}<|tool_call_end|>'
KIMI_G = "<|tool_call_begin|>functions.a.g:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
KIMI_BEGIN, KIMI_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALLS = [Call("f", '{"x": [1, "}"]}', call_id="functions.f:0"), Call("a.g", "{}", call_id="functions.a.g:12")]
PYTHON_F = "[f(x=[1, '}'])"

CASES = [
    # format, output, parts
    ("deepseek_v3", f"Ok.\n{BEGIN}{V3_F}\n{V3_G}{END}\n", Parsed("Ok.", [F, G])),
    ("deepseek_v3", f"{BEGIN}{V3_F}{END}\n\nBye", Parsed("Bye", [F])),
    ("deepseek_v3", f"{V3_F}", Parsed("", [F])),
    ("deepseek_v3", f"{BEGIN}{V3_F[:-20]}", Parsed("", [F])),
    ("deepseek_v3", f"a{BEGIN}b{END}", Parsed(f"a{BEGIN}b{END}")),
    ("deepseek_v31", f"Ok.\n{BEGIN}{V31_F}{V31_G}{END}", Parsed("Ok.", [F, G])),
    ("deepseek_v31", f"{BEGIN}{V31_F[: V31_F.index('1') + 2]}", Parsed("", [Call("f", '{"x": [1,', is_valid=False)])),
    (
        "deepseek_v31",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>",
        Parsed("", [Call("f", "{}")]),
    ),
    (
        "deepseek_v31",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜> x=1, \n<｜tool▁call▁end｜>b",
        Parsed("b", [Call("f", "x=1,", is_valid=False)]),
    ),
    (
        "deepseek_v31",
        '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}} <｜tool▁call▁end｜>',
        Parsed("", [Call("f", '{"x": 1}}', is_valid=False)]),
    ),
    ("kimi_k2", f"Ok.{KIMI_BEGIN}{KIMI_F}{KIMI_G}{KIMI_END}", Parsed("Ok.", KIMI_CALLS)),
    ("kimi_k2", f"{KIMI_BEGIN}\n{KIMI_F}\n{KIMI_END}\n b", Parsed(" b", KIMI_CALLS[:1])),
    ("kimi_k2", f"{KIMI_BEGIN}{KIMI_END}", Parsed(f"{KIMI_BEGIN}{KIMI_END}")),
    (
        "kimi_k2",
        "<|tool_call_begin|>f\nx<|tool_call_argument_begin|>{}",
        Parsed("<|tool_call_begin|>f\nx<|tool_call_argument_begin|>{}"),
    ),
    ("mistral", 'Ok.\n[TOOL_CALLS]f[ARGS]{"x": [1, "}"]}[TOOL_CALLS]g[ARGS]{}', Parsed("Ok.", [F, G])),
    ("mistral", 'I will.[TOOL_CALLS]f{"x": [1, "}"]}[TOOL_CALLS]g{} ok', Parsed("I will. ok", [F, G])),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abc[ARGS]{"x": 1}', Parsed("", [Call("f", '{"x": 1}', call_id="abc")])),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"x": [1, "}"]}}, {"arguments": {}, "name": "g"}]\n\nok',
        Parsed("ok", [F, G]),
    ),
    ("mistral", '[TOOL_CALLS]{"name": "g", "arguments": {}}', Parsed("", [G])),
    ("mistral", "[TOOL_CALLS]f[ARGS]x[TOOL_CALLS]g[ARGS]{}", Parsed("", [Call("f", "x", is_valid=False), G])),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": [', Parsed("", [Call("f", '{"x": [', is_valid=False)])),
    ("mistral", "[TOOL_CALLS] nothing\n[TOOL_CALLS][1]", Parsed("[TOOL_CALLS] nothing\n[TOOL_CALLS][1]")),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "g", "arguments": {}}, 5] b',
        Parsed(", 5] b", [G]),
    ),
    ("llama3_json", '{"name": "f", "parameters": {"x": [1, "}"]}}', Parsed("", [F])),
    (
        "llama3_json",
        ' {"name": "f", "arguments": {"x": [1, "}"]}}; {"name": "g", "parameters": {}}',
        Parsed("", [F, G]),
    ),
    ("llama3_json", '<|python_tag|>{"parameters": {}, "name": "g"} x', Parsed(" x", [G])),
    ("llama3_json", '{"name": "g", "parameters": {}}; {"a": 1}', Parsed('; {"a": 1}', [G])),
    ("llama3_json", 'Use {"name": "g", "parameters": {}}', Parsed('Use {"name": "g", "parameters": {}}')),
    ("llama3_json", '{"name": "Ann", "age": {"a": 1}}', Parsed('{"name": "Ann", "age": {"a": 1}}')),
    ("llama3_json", '{"name": "Ann', Parsed('{"name": "Ann')),
    ("llama3_json", '{"name": "f", "parameters": {"x"', Parsed("", [Call("f", '{"x"', is_valid=False)])),
    ("llama4_json", '<|python_start|>{"name": "g", "parameters": {}}<|python_end|>\n', Parsed("", [G])),
    ("pythonic", f"{PYTHON_F}, g()]", Parsed("", [F, G])),
    (
        "llama4_json",
        '<|python_start|>{"name": "g", "parameters": {}}; {"no": 1}<|python_end|>ok',
        Parsed('; {"no": 1}ok', [G]),
    ),
    ("llama4_pythonic", f"<|python_start|>{PYTHON_F}, 5]<|python_end|>ok", Parsed(", 5]ok", [F])),
    ("openai", '<|channel|>commentary to=functions. <|message|>{"x": 1}<|call|>', Parsed('{"x": 1}')),
    ("openai", "<|channel|>analysis to=functions.<|message|>hm<|end|>", Parsed("", [], "hm")),
    ("llama4_pythonic", f"<|python_start|>{PYTHON_F}]<|python_end|>ok", Parsed("ok", [F])),
    (
        "pythonic",
        """[f(a='it\\'s "x"', b=None, c={'k': (1, -2.5), "n": []}, d="é\\n\\u00e9\\ud83d\\ude00", e=True,)]""",
        Parsed(
            "",
            [Call("f", '{"a": "it\'s \\"x\\"", "b": null, "c": {"k": [1, -2.5], "n": []}, "d": "é\\né😀", "e": true}')],
        ),
    ),
    ("pythonic", "[m.f-2(x=g(1))]", Parsed("", [Call("m.f-2", '{"x": g(1)}', is_valid=False)])),
    ("pythonic", "[f(1)]", Parsed("", [Call("f", "{1}", is_valid=False)])),
    ("pythonic", "[f(x='a", Parsed("", [Call("f", '{"x": \'a', is_valid=False)])),
    ("pythonic", "[f(), 1] x", Parsed(", 1] x", [Call("f", "{}")])),
    ("pythonic", "[1, 2]", Parsed("[1, 2]")),
    ("pythonic", "[link](url)", Parsed("[link](url)")),
    ("pythonic", "See [f()]", Parsed("See [f()]")),
    (
        "openai",
        "<|channel|>analysis<|message|>I\n think.<|end|><|start|>assistant<|channel|>commentary<|message|>Look:<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": [1, "}"]}<|call|>',
        Parsed("Look:", [F], "I\n think."),
    ),
    (
        "openai",
        "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hi.\n<|return|>",
        Parsed("Hi.\n", [], "A\nB"),
    ),
    ("openai", ' to=functions.f<|channel|>commentary json<|message|>{"x": [1, "}"]}', Parsed("", [F])),
    (
        "openai",
        '<|start|>assistant to=f<|channel|>analysis code<|message|>\n{"x": [1, "}"]}\n<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.g json<|message|><|call|>",
        Parsed("", [F, G]),
    ),
    ("openai", "<|channel|>final<|message|>a <|me <b>", Parsed("a <|me <b>")),
    ("openai", "<|channel|>analysis<|message|>a", Parsed("", [], "a")),
    ("openai", "Hello\n", Parsed("Hello\n")),
    ("openai", "<|channel|>final", Parsed()),
    ("openai", "<|channel|>analysis<|message|>a<|end|><|start|>assist", Parsed("", [], "a")),
    ("openai", "<|channel|>commentary to=functions.f <|constrain|>js", Parsed()),
    ("openai", "<|channel|>final The <b><|end|>Yes<|return|>", Parsed("final The <b>Yes")),
    ("openai", "<|channel|>analysis<|message|>a<|message|>b<|constrain|>c", Parsed("c", [], "a\nb")),
    (
        "openai",
        "<|channel|>analysis to=python code<|message|>1 + 1<|call|>"
        '<|start|>assistant to=browser.search<|channel|>commentary json<|message|>{"q": 1}<|call|>',
        Parsed("", [], '1 + 1\n{"q": 1}'),
    ),
    ("openai", "<|channel|>commentary to=functions.f<|message|>{", Parsed("", [Call("f", "{", is_valid=False)])),
]


@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_outputs(name: str, text: str, expected: Parsed) -> None:
    assert parse_all_ways(text, name, markers=markers(name, None)) == expected


def test_kimi_calls_end_the_reasoning() -> None:
    text = f"<think>I use{KIMI_BEGIN}{KIMI_F}{KIMI_END}"
    expected = Parsed("", KIMI_CALLS[:1], "I use")
    assert parse_all_ways(text, "kimi_k2", "kimi_k2", markers=markers("kimi_k2", "kimi_k2")) == expected


def test_formats_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown tool call parser 'x'; choose one of hermes"):
        markers("x", None)
    with pytest.raises(ValueError, match="unknown reasoning parser 'x'; choose one of deepseek_r1"):
        markers(None, "x")
    with pytest.raises(ValueError, match="openai needs the reasoning parser openai_gptoss"):
        markers("openai", "qwen3")
    with pytest.raises(ValueError, match="openai_gptoss needs the tool call parser openai"):
        markers("hermes", "openai_gptoss")


def test_a_function_may_have_the_name_of_a_tool_of_the_model() -> None:
    text = '<|channel|>commentary to=python <|constrain|>json<|message|>{"x": 1}<|call|>'
    for name, calls in (("python", [Call("python", '{"x": 1}')]), ("f", [])):
        parsed = parse_all_ways(text, "openai", tools=(Tool(name=name, parameters={}),))
        assert parsed.calls == calls
    text = text.replace("to=", "to=functions.")
    assert parse_all_ways(text, "openai").calls == [Call("python", '{"x": 1}')]
