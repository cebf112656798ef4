"""Which outputs the grammar of a request allows: calls, content and reasoning."""

import json

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.grammar import MAX_SOURCE_BYTES, Grammar, GrammarKind
from baton.engine.grammar.xgrammar_backend import XGrammarBackend
from baton.router.errors import FieldError
from baton.router.output.format import OutputFormat
from baton.router.output.rules import NO_TOOLS, OutputRules, ToolUse, output_rules
from baton.router.parsing.base import Content, Piece, Tool
from baton.router.pipeline import INLINE_GRAMMAR_CHARS
from tests.unit.engine.grammar_rig import EOS, backend, byte_tokenizer

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
TOOLS = (Tool(name="f", parameters=AGE), Tool(name="g", parameters={}))
FIELDS = tuple(f"tools[{place}].function.parameters" for place in range(2))
PLAIN, THINKING = OutputFormat("hermes", None, {}), OutputFormat("hermes", "deepseek_r1", {})
GIVEN = Grammar(GrammarKind.REGEX, "[0-9]{3}", field="structured_outputs.regex")
F, G, BAD_F = (f"<tool_call>\n{each}\n</tool_call>" for each in (
    '{"name": "f", "arguments": {"age": 5}}', '{"name": "g", "arguments": {}}', '{"name": "f", "arguments": {}}',
))  # fmt: skip


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> XGrammarBackend:
    return backend(tmp_path_factory.mktemp("rules"))


def use(*tools: Tool, **options: bool) -> ToolUse:
    return ToolUse(offered=tools, fields=FIELDS[: len(tools)], **options)


def matching(compiler: XGrammarBackend, grammar: Grammar | None, *texts: str) -> list[str]:
    """Return the texts that the grammar allows as whole outputs."""
    assert grammar is not None
    compiled = compiler.compile(grammar)

    def is_match(text: str) -> bool:
        return all(map(compiled.matcher(frozenset({EOS})).accept, [*byte_tokenizer().encode(text).ids, EOS]))

    return list(filter(is_match, texts))


def test_required_calls(compiler: XGrammarBackend) -> None:
    rules = OutputRules(PLAIN, use(*TOOLS, is_required=True))
    assert matching(compiler, rules.grammar(None, None), F, f"{F}\n{G}", BAD_F, "no", "") == [F, f"{F}\n{G}"]
    rules = OutputRules(PLAIN, use(*TOOLS, is_required=True, is_parallel=False))
    assert matching(compiler, rules.grammar(None, None), F, f"{F}\n{G}") == [F]
    rules = OutputRules(PLAIN, use(TOOLS[1], is_required=True))
    assert matching(compiler, rules.grammar(None, None), F, G) == [G]


def test_many_tools_without_parameters_are_much_work() -> None:
    rules = OutputRules(PLAIN, use(*[Tool(name=f"f{number}", parameters={}) for number in range(100)]))
    assert rules.num_schema_chars > INLINE_GRAMMAR_CHARS


def test_calls_of_strict_tools(compiler: XGrammarBackend) -> None:
    assert not OutputRules(PLAIN, use(*TOOLS)).need_grammar
    rules = OutputRules(PLAIN, use(Tool(name="f", parameters=AGE, strict=True), TOOLS[1]))
    assert rules.need_grammar
    assert matching(compiler, rules.grammar(None, None), F, f"So: {F}", "no", BAD_F) == [F, f"So: {F}", "no"]


def test_calls_of_some_tools(compiler: XGrammarBackend) -> None:
    rules = OutputRules(PLAIN, use(TOOLS[0], is_limited=True))
    assert rules.need_grammar
    assert matching(compiler, rules.grammar(None, None), F, BAD_F, "no", G) == [F, BAD_F, "no"]  # f is not strict


def test_content_that_matches_a_grammar_or_calls(compiler: XGrammarBackend) -> None:
    grammar = OutputRules(PLAIN, use(*TOOLS)).grammar(GIVEN, None)
    assert matching(compiler, grammar, "123", "12", F, BAD_F) == ["123", F]


def test_a_grammar_begins_after_the_reasoning(compiler: XGrammarBackend) -> None:
    thought = "hm</think>\n\n"
    grammar = OutputRules(THINKING, use(*TOOLS, is_required=True)).grammar(None, True)
    assert matching(compiler, grammar, F, f"{thought}{F}", f"{thought}no") == [f"{thought}{F}"]
    for tools in (NO_TOOLS, use(*TOOLS)):
        grammar = OutputRules(THINKING, tools).grammar(GIVEN, True)
        assert matching(compiler, grammar, "123", f"{thought}123", f"{thought}12") == [f"{thought}123"]
        closed = OutputRules(THINKING, tools).grammar(GIVEN, False)
        assert matching(compiler, closed, "123", f"{thought}123") == ["123"]
    assert OutputRules(THINKING, NO_TOOLS).grammar(GIVEN, False) is GIVEN


def test_what_cannot_be_enforced_is_refused_by_its_field() -> None:
    with pytest.raises(FieldError) as caught:
        OutputRules(PLAIN, use(*TOOLS, is_required=True)).grammar(GIVEN, None)
    assert caught.value.field == GIVEN.field
    bad = Tool(name="g", parameters={"type": "object", "properties": {"a": {"not": {}}}})
    with pytest.raises(FieldError) as caught:
        OutputRules(PLAIN, use(TOOLS[0], bad, is_required=True)).grammar(None, None)
    assert caught.value.field == FIELDS[1]
    assert not OutputRules(PLAIN, use(TOOLS[0], bad)).need_grammar
    huge = Tool(name="f", parameters=AGE | {"description": "a" * (MAX_SOURCE_BYTES * 2 // 3)}, strict=True)
    with pytest.raises(InvalidRequest, match=r"^tools: it has \d+ bytes") as too_large:
        OutputRules(PLAIN, ToolUse(offered=(huge, huge), fields=FIELDS)).grammar(None, None)
    assert "131072" in str(too_large.value)
    with pytest.raises(InvalidRequest, match=r"^structured_outputs.regex: "):
        OutputRules(PLAIN, use(*TOOLS)).grammar(Grammar(GrammarKind.REGEX, "(?=a)", field=GIVEN.field), None)


def test_errors_name_the_only_tool() -> None:
    grammar = OutputRules(PLAIN, use(TOOLS[0], is_required=True)).grammar(None, None)
    assert grammar is not None
    assert (grammar.field, grammar.kind) == (FIELDS[0], GrammarKind.STRUCTURAL_TAG)
    assert json.loads(grammar.source)["type"] == "structural_tag"


def test_an_output_without_tools_and_reasoning_is_text() -> None:
    assert output_rules(PLAIN, NO_TOOLS) is None
    assert output_rules(THINKING, NO_TOOLS) is not None
    with pytest.raises(FieldError, match="tools are not supported"):
        output_rules(OutputFormat(None, None, {}), use(*TOOLS))


def test_harmony_has_content_and_calls_in_their_channels(compiler: XGrammarBackend) -> None:
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"age": 5}'
    texts = [f"{final}123", f"{thought}{final}123", call, f"{thought}{thought}{call}"]
    others = [
        "123",
        f"{final}12",
        f"{thought}123",
        call.replace("5", '""'),
        f"{final}123<|end|><|start|>assistant{call}",
    ]
    grammar = OutputRules(OutputFormat("openai", "openai_gptoss", {}), use(*TOOLS)).grammar(GIVEN, None)
    assert matching(compiler, grammar, *texts, *others) == texts
    continued = OutputRules(OutputFormat("openai", "openai_gptoss", {}), NO_TOOLS).grammar(GIVEN, False)
    assert continued is GIVEN  # the prompt ends in the message


def test_values_between_special_tokens_cannot_be_enforced() -> None:
    markers = {5: "<tool_call>", 6: "<arg_key>"}
    form = OutputFormat("glm45", "glm45", markers, frozenset(markers.values()))
    with pytest.raises(FieldError, match="<arg_key> is a special token, which the grammar of its calls cannot contain"):
        OutputRules(form, use(TOOLS[0], is_required=True)).grammar(None, None)
    assert OutputRules(form, NO_TOOLS).grammar(GIVEN, None) is not None
    outer = OutputFormat("glm45", "glm45", markers, frozenset({"<tool_call>"}))
    assert OutputRules(outer, use(TOOLS[0], is_required=True)).grammar(None, None) is not None


def test_a_function_with_many_properties_cannot_be_enforced() -> None:
    parameters = {"type": "object", "properties": {f"p{place}": {"type": "null"} for place in range(3000)}}
    rules = OutputRules(
        OutputFormat("pythonic", None, {}), use(Tool(name="f", parameters=parameters), is_required=True)
    )
    with pytest.raises(FieldError, match="it has 3000 properties, over the limit of 256"):
        rules.grammar(None, None)


def test_optional_arguments_of_python_calls_take_linear_space() -> None:
    def size(number: int) -> int:
        properties = {f"p{place}": {"type": "null"} for place in range(number)}
        tool = Tool(name="f", parameters={"type": "object", "properties": properties})
        grammar = OutputRules(OutputFormat("pythonic", None, {}), use(tool, is_required=True)).grammar(None, None)
        assert grammar is not None
        return len(grammar.source)

    assert size(200) < 2.2 * size(100)


def test_calls_that_were_not_offered_are_content() -> None:
    rules = output_rules(OutputFormat("openai", "openai_gptoss", {}), NO_TOOLS)
    assert rules is not None
    reader = rules.reader(None, has_grammar=False, request_id="r")
    text = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>'
    reader.hold(Piece(text))
    parts = [*reader.release(len(text)), *reader.flush()]
    assert "".join(part.text for part in parts if isinstance(part, Content)) == '{"x": 1}'
    assert reader.num_calls == 0


@pytest.mark.parametrize(
    ("has_grammar", "is_special", "num_calls"), [(True, False, 1), (False, False, 0), (True, True, 0)]
)
def test_a_marker_that_is_spelled_counts_if_a_grammar_asks_for_its_text(
    has_grammar: bool, is_special: bool, num_calls: int
) -> None:
    marks = {7: "<tool_call>", 8: "</tool_call>"}
    form = OutputFormat("hermes", None, marks, frozenset(marks.values()) if is_special else frozenset())
    reader = OutputRules(form, use(*TOOLS, is_required=True)).reader(None, has_grammar, "r")
    for text in ("<", "tool_call>\n", '{"name": "f", "arguments": {"age": 5}}', "\n"):
        reader.hold(Piece(text))
    reader.hold(Piece("</tool_call>", "</tool_call>"))
    parts = [*reader.release(len(F)), *reader.flush()]
    assert reader.num_calls == num_calls
    content = "".join(part.text for part in parts if isinstance(part, Content))
    assert content == ("" if num_calls else F)
