"""Formats of structural tags match the same texts as the grammars that they replace."""

import json

import pytest

from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.xgrammar_backend import XGrammarBackend
from baton.router.errors import FieldError
from baton.router.output.grammar import check_parameters, format_of, tag_grammar
from tests.unit.engine.grammar_rig import EOS, backend, byte_tokenizer, drawn

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "prefixItems": [{"type": "integer"}]}},
    "required": ["name"],
}
TAG = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"},
}
CASES: list[tuple[Grammar, list[str], list[str]]] = [
    (Grammar(GrammarKind.JSON_OBJECT), ["{}", '{"a": {"b": [1, "x"]}}'], ["[]", "1", ""]),
    (
        Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON)),
        ['{"name": "a"}', '{"name": "a", "tags": [1]}', '{ "name":"a"}'],
        ["{}", '{"name": "a", "b": 1}', '{"name": "a", "tags": [1, 2]}', '{"name":' + " " * 30 + '"a"}'],
    ),
    (
        Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON), is_open=True),
        ['{"name": "a"}', '{"name": "a", "b": {"c": 1}}', '{"name": "a", "tags": [1, "x"]}'],
        ["{}", '{"name": 1}', '{"name": "a", "tags": ["x"]}'],
    ),
    (Grammar(GrammarKind.REGEX, "[a-c]{2,3}"), ["ab", "abc"], ["a", "abcd", "xy"]),
    (Grammar(GrammarKind.EBNF, 'root ::= "(" root ")" | "x"'), ["x", "((x))"], ["(x", ""]),
    (Grammar(GrammarKind.CHOICE, json.dumps(["yes", 'n"o'])), ["yes", 'n"o'], ["y", "no"]),
    (Grammar(GrammarKind.STRUCTURAL_TAG, json.dumps(TAG)), ["<a>x</a>"], ["x", "<a>"]),
]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> XGrammarBackend:
    return backend(tmp_path_factory.mktemp("grammars"))


def matches(compiler: XGrammarBackend, grammar: Grammar, text: str) -> bool:
    grammar.validate()
    matcher = compiler.compile(grammar).matcher(frozenset({EOS}))
    return all(map(matcher.accept, [*byte_tokenizer().encode(text).ids, EOS]))


@pytest.mark.parametrize(("grammar", "good", "bad"), CASES)
def test_a_format_matches_the_same_texts(
    compiler: XGrammarBackend, grammar: Grammar, good: list[str], bad: list[str]
) -> None:
    other = tag_grammar(format_of(grammar), "tools")
    for text in (*good, *bad):
        assert matches(compiler, grammar, text) == matches(compiler, other, text) == (text in good), text


def test_outputs_of_a_format_match_the_grammar(compiler: XGrammarBackend) -> None:
    num_complete = 0
    for grammar, _, _ in CASES[:3]:
        compiled = compiler.compile(tag_grammar(format_of(grammar), "tools"))
        for seed in range(6):
            token_ids = list(drawn(compiled, seed))
            matcher = compiler.compile(grammar).matcher(frozenset({EOS}))
            assert all(map(matcher.accept, token_ids))
            num_complete += token_ids[-1] == EOS
    assert num_complete > 6


def test_what_has_no_format_is_refused() -> None:
    grammar = Grammar(GrammarKind.STRUCTURAL_TAG, '{"triggers": []}', field="guided")
    with pytest.raises(FieldError, match=r"guided: .*needs the field format"):
        format_of(grammar)


def test_bad_parameters_are_refused_by_their_field() -> None:
    with pytest.raises(FieldError, match=r"^tools\[3\].function.parameters: properties.a: not is not") as caught:
        check_parameters({"type": "object", "properties": {"a": {"not": {}}}}, "tools[3].function.parameters")
    assert caught.value.field == "tools[3].function.parameters"
    check_parameters({}, "tools[0].function.parameters")
