"""Random schemas: outputs of the masks are valid, and what is refused is refused by the keyword's name."""

import json
import re

import jsonschema
import pytest

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.base import CompiledGrammar
from baton.engine.grammar.schema import json_schema
from baton.engine.grammar.xgrammar_backend import XGrammarBackend
from tests.marks import slow_case
from tests.unit.engine.grammar.random_schemas import RandomSchemas
from tests.unit.engine.grammar_rig import EOS, backend, byte_tokenizer, drawn, schema_grammar

NUM_USUAL, NUM_ALL = 30, 1000
NUM_WALKS = 3
MAX_TOKENS = 500
CHECKED_FORMATS = (
    "ipv4",
    "ipv6",
    "uuid",
)  # those whose check needs no further package; the days of months do not count
KEYWORDS = (*json_schema.IGNORED, *json_schema.RESTRICTING, "uniqueItems", "$defs")


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> XGrammarBackend:
    return backend(tmp_path_factory.mktemp("model"))


def check(compiler: XGrammarBackend, seed: int, is_open: bool) -> int | None:
    """Check one schema; return the number of outputs that ended, None if it is refused."""
    schema = RandomSchemas(seed).schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.FormatChecker(formats=CHECKED_FORMATS)
    )
    grammar = schema_grammar(schema, is_open)
    try:
        grammar.check()
        compiled = compiler.compile(grammar)  # refuses what nothing matches
    except (ValueError, InvalidRequest) as error:
        refusal = str(error)
    else:
        return num_valid(compiled, validator)
    assert any(re.search(rf"(^|[ :]){re.escape(keyword)}\b", refusal) for keyword in KEYWORDS), refusal
    return None


def num_valid(compiled: CompiledGrammar, validator: jsonschema.Draft202012Validator) -> int:
    """Return the number of outputs that ended, all of them valid."""
    num_ended = 0
    for number in range(NUM_WALKS):
        token_ids = list(drawn(compiled, number, MAX_TOKENS))
        if token_ids[-1] == EOS:
            num_ended += 1
            validator.validate(json.loads(byte_tokenizer().decode(token_ids)))
    return num_ended


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("seeds", [range(NUM_USUAL), slow_case(range(NUM_USUAL, NUM_ALL))], ids=["usual", "all"])
def test_outputs_are_valid(compiler: XGrammarBackend, seeds: range, is_open: bool) -> None:
    results = {seed: check(compiler, seed, is_open) for seed in seeds}
    accepted = [num_ended for num_ended in results.values() if num_ended is not None]
    assert len(accepted) > len(seeds) // 3
    assert sum(accepted) > len(accepted)
