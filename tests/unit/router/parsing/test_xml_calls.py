"""Calls with XML-like parameters."""

from dataclasses import dataclass

import pytest

from baton.router.parsing.base import CallArguments, Tool
from baton.router.parsing.formats import make_parser, markers
from tests.unit.router.parsing.outputs import Call, Parsed, parse_all_ways, pieces_of

TOOL = Tool(
    name="f",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": "number"},
            "flag": {"type": "boolean"},
            "items": {"type": "array"},
            "options": {"type": "object"},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "unit": {"enum": ["C", "F"]},
        },
    },
)


@dataclass(frozen=True)
class Syntax:
    """The parts of a call in a format."""

    name: str
    begin: str
    name_end: str
    parameter: str  # with KEY and VALUE
    end: str
    separator: str
    section_end: str
    begins_again: str  # in front of a second call

    def call(self, name: str, *parameters: tuple[str, str]) -> str:
        """Return a call without its section's end."""
        texts = [self.parameter.replace("KEY", key).replace("VALUE", value) for key, value in parameters]
        return f"{name}{self.name_end}{''.join(texts)}{self.end}"

    def output(self, *calls: str) -> str:
        """Return an output with the calls."""
        return self.begin + f"{self.separator}{self.begins_again}".join(calls) + self.section_end


QWEN = Syntax(
    "qwen3_coder",
    "<tool_call>\n<function=",
    ">\n",
    "<parameter=KEY>\nVALUE\n</parameter>\n",
    "</function>",
    "\n</tool_call>\n",
    "\n</tool_call>",
    "<tool_call>\n<function=",
)
GLM = Syntax(
    "glm45",
    "<tool_call>",
    "\n",
    "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
    "",
    "</tool_call>\n",
    "</tool_call>",
    "<tool_call>",
)
GLM47 = Syntax(
    "glm47",
    "<tool_call>",
    "",
    "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>",
    "",
    "</tool_call>",
    "</tool_call>",
    "<tool_call>",
)
MINIMAX = Syntax(
    "minimax_m2",
    '<minimax:tool_call>\n<invoke name="',
    '">\n',
    '<parameter name="KEY">VALUE</parameter>\n',
    "</invoke>",
    "\n",
    "\n</minimax:tool_call>",
    '<invoke name="',
)
SYNTAXES = {each.name: each for each in (QWEN, GLM, GLM47, MINIMAX)}
VALUES = [
    ("text", 'a "b" \\ \n\n é 😀 {"x": 1} <b> </b> 5', '"a \\"b\\" \\\\ \\n\\n é 😀 {\\"x\\": 1} <b> </b> 5"'),
    ("text", "12", '"12"'),
    ("text", "", '""'),
    ("text", " </param <parameter <tool_call ", '" </param <parameter <tool_call "'),
    ("count", "12", "12"),
    ("count", "-3", "-3"),
    ("count", "many", '"many"'),
    ("ratio", "1.5e3", "1.5e3"),
    ("ratio", "2", "2"),
    ("flag", "true", "true"),
    ("flag", "True", "true"),
    ("items", '["a", {"b": [1]}]', '["a", {"b": [1]}]'),
    ("items", "['a', None, (1, 2)]", '["a", null, [1, 2]]'),
    ("options", '{"a": "}"}', '{"a": "}"}'),
    ("options", "{'it': 'isn\\'t', }", '{"it": "isn\'t"}'),
    ("maybe", "null", "null"),
    ("maybe", "nothing", '"nothing"'),
    ("maybe", "5", '"5"'),
    ("either", "5", "5"),
    ("either", "five", '"five"'),
    ("unit", "C", '"C"'),
    ("unknown", "5", "5"),
    ("unknown", "five", '"five"'),
    ("unknown", '"five"', '"five"'),
]


def parse(syntax: Syntax, text: str, tools: tuple[Tool, ...] = (TOOL,)) -> Parsed:
    return parse_all_ways(text, syntax.name, None, tools, markers(syntax.name, None))


@pytest.mark.parametrize("name", SYNTAXES)
@pytest.mark.parametrize(("key", "value", "expected"), VALUES)
def test_values_have_the_types_of_the_schema(name: str, key: str, value: str, expected: str) -> None:
    if key == "text" and "<tool_call " in value and name != "qwen3_coder":
        value, expected = value.strip(), f'"{value.strip()}"'
    syntax = SYNTAXES[name]
    text = syntax.output(syntax.call("f", (key, value)))
    assert parse(syntax, text) == Parsed("", [Call("f", f'{{"{key}": {expected}}}')])


@pytest.mark.parametrize("name", SYNTAXES)
def test_parallel_calls_and_content(name: str) -> None:
    syntax = SYNTAXES[name]
    calls = (syntax.call("f", ("text", "a"), ("count", "1")), syntax.call("g"), syntax.call("f", ("count", "2")))
    expected = [Call("f", '{"text": "a", "count": 1}'), Call("g", "{}"), Call("f", '{"count": 2}')]
    text = f"Let me.\n\n{syntax.output(*calls)}\n"
    assert parse(syntax, text) == Parsed("Let me.", expected)
    assert parse(syntax, f"{syntax.output(*calls)}\n\nDone.") == Parsed("Done.", expected)


@pytest.mark.parametrize("name", SYNTAXES)
def test_cut_calls_stay_calls(name: str) -> None:
    syntax = SYNTAXES[name]
    text = syntax.output(syntax.call("f", ("text", "abc"), ("count", "12")))
    cut = text[: text.index("2")]
    assert parse(syntax, cut) == Parsed("", [Call("f", '{"text": "abc", "count": 1', is_valid=False)])
    cut = text[: text.index("c", text.index("ab"))]
    assert parse(syntax, cut) == Parsed("", [Call("f", '{"text": "ab', is_valid=False)])


@pytest.mark.parametrize("name", SYNTAXES)
def test_what_is_no_call_is_content(name: str) -> None:
    syntax = SYNTAXES[name]
    for text in (
        f"{syntax.begin}",
        f"Write {syntax.begin}<b>\n",
        f"{syntax.begin}\n\n{syntax.section_end}",
        f"a {syntax.section_end} b",
        f"{syntax.begin[:-1]} f",
    ):
        assert parse(syntax, text) == Parsed(text)


def test_qwen_calls_may_lack_the_outer_element() -> None:
    text = "I call\n<function=f>\n<parameter=count>\n1\n</parameter>\n</function>"
    assert parse(QWEN, text) == Parsed("I call", [Call("f", '{"count": 1}')])
    assert parse(QWEN, text + "\n</tool_call>") == Parsed("I call", [Call("f", '{"count": 1}')])


def test_qwen_values_keep_all_but_one_line_break() -> None:
    text = QWEN.output(QWEN.call("f", ("text", "\n  a\n\n")))
    assert parse(QWEN, text) == Parsed("", [Call("f", '{"text": "\\n  a\\n\\n"}')])


def test_qwen_calls_end_the_reasoning() -> None:
    text = f"<think>\nI use <tool_call> now\n{QWEN.output(QWEN.call('g'))}"
    expected = Parsed("", [Call("g", "{}")], "I use <tool_call> now")
    assert parse_all_ways(text, "qwen3_coder", "qwen3", (), markers("qwen3_coder", "qwen3")) == expected


def test_glm_without_the_marker_in_front_of_a_value() -> None:
    text = "<tool_call>f<arg_key>text</arg_key>abc</arg_value></tool_call>"
    assert parse(GLM, text) == Parsed("", [Call("f", '{"text": "abc"}')])


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4"])
def test_deepseek_says_what_is_a_string(name: str) -> None:
    text = (
        'Sure.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="count" string="true">5</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="text" string="false">{"a": [1]}</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    )
    if name == "deepseek_v4":
        text = text.replace("function_calls", "tool_calls")
    expected = Parsed("Sure.", [Call("f", '{"count": "5", "text": {"a": [1]}}'), Call("g", "{}")])
    assert parse_all_ways(text, name, None, (TOOL,), frozenset({"｜DSML｜"})) == expected


@pytest.mark.parametrize("name", SYNTAXES)
def test_strings_are_passed_on_as_they_arrive(name: str) -> None:
    syntax = SYNTAXES[name]
    text = syntax.output(syntax.call("f", ("text", "abc def")))
    parser = make_parser(name, None, (TOOL,))
    assert parser.push(pieces_of(text[: text.index("def")]))[-1] == CallArguments(0, '{"text": "abc ')
    assert parser.push(pieces_of("d")) == [CallArguments(0, "d")]


@pytest.mark.parametrize("name", SYNTAXES)
def test_a_value_without_its_end_does_not_swallow_the_next_call(name: str) -> None:
    syntax = SYNTAXES[name]
    value_end = syntax.parameter.partition("VALUE")[2]
    broken = syntax.call("f", ("count", "1")).replace(value_end, "\n")
    text = syntax.output(broken, syntax.call("g", ("text", "a")))
    parsed = parse_all_ways(text, syntax.name, None, [TOOL], markers(syntax.name, None))
    assert [call.name for call in parsed.calls] == ["f", "g"]
    assert [call.is_valid for call in parsed.calls] == [True, True]
    assert parsed.calls[0].arguments == '{"count": 1}'
    assert parsed.content == ""


def test_a_value_may_have_the_end_of_a_call_in_it() -> None:
    text = QWEN.output(QWEN.call("f", ("text", "a</function>\n</b></function>")))
    assert parse_all_ways(text, "qwen3_coder", None, [TOOL]).calls == [
        Call("f", '{"text": "a</function>\\n</b></function>"}')
    ]
