"""Grammars that end the process that compiles them: a trial refuses them, and the next one is tried."""

import json
from collections.abc import Iterator

import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.cost import is_cheap
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.trial import ProcessTrial
from tests.unit.engine.grammar_rig import EOS, VOCAB_SIZE, byte_tokenizer

TIMEOUT_S = 60.0
WORD = Grammar(GrammarKind.REGEX, "[a-z]{1,99}")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessTrial]:
    directory = tmp_path_factory.mktemp("model")
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    process = ProcessTrial(directory, VOCAB_SIZE, frozenset({EOS}))
    yield process
    process.close()


REPEATS_ITSELF = ("root ::= root{0,2}", "root ::= root{1,}", "root ::= a{1}\na ::= root", 'root ::= "x" a\na ::= a{1}')


@pytest.mark.parametrize("source", REPEATS_ITSELF)
@pytest.mark.parametrize("is_tag", [False, True])
def test_a_grammar_that_ends_the_compiling_process_is_refused(trial: ProcessTrial, source: str, is_tag: bool) -> None:
    tag = {"type": "structural_tag", "format": {"type": "grammar", "grammar": source}}
    kind = GrammarKind.STRUCTURAL_TAG if is_tag else GrammarKind.EBNF
    grammar = Grammar(kind, json.dumps(tag) if is_tag else source)
    assert not is_cheap(grammar)
    with pytest.raises(InvalidRequest, match="not possible"):
        trial.run(grammar, TIMEOUT_S)
    trial.run(WORD, TIMEOUT_S)
