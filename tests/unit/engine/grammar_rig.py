"""A small byte-level vocabulary, and outputs drawn from masks alone."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from baton.engine.checkpoint.token_bytes import byte_of_character
from baton.engine.engine import Engine
from baton.engine.grammar.base import CompiledGrammar
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.xgrammar_backend import XGrammarBackend
from baton.engine.outputs import StepOutput

VOCAB_SIZE = 320  # more than the tokenizer has, as models have
EOS = 2
SPECIAL = ("<pad>", "<s>", "</s>")
LONGER = ('"a', '":', '": ', '",', "{}", "[]", "true", "false", "null", "ab", "12", "é", '"}', "\\u00", "}]", "  ")


def byte_tokenizer() -> Tokenizer:
    """A tokenizer with every byte, some longer tokens and three special ones."""
    character_of = {byte: character for character, byte in byte_of_character().items()}
    longer = ["".join(character_of[byte] for byte in text.encode()) for text in LONGER]
    names = [*SPECIAL, *(character_of[byte] for byte in range(256)), *longer]
    tokenizer = Tokenizer(BPE({name: token_id for token_id, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def backend(directory: Path) -> XGrammarBackend:
    """The backend for that vocabulary."""
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    return XGrammarBackend(str(directory), VOCAB_SIZE, frozenset({EOS}))


class NoTrial:
    """For grammars that are cheap, or known to compile."""

    def run(self, grammar: Grammar, timeout_s: float) -> None:
        """Find nothing."""

    def close(self) -> None:
        """Do nothing."""


def steps(engine: Engine) -> Iterator[StepOutput]:
    """Run steps to the end of all requests.

    A step without an output is followed by a pause: threads that import and compile get Python's lock only there.
    """
    while engine.has_work:
        step = engine.run(engine.schedule())
        yield step
        if not step.outputs:
            time.sleep(0.001)


def schema_grammar(schema: object, is_open: bool = False) -> Grammar:
    """A schema's grammar."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), is_open)


def allowed(row: torch.Tensor) -> list[int]:
    """Tokens whose bits are set."""
    bits = (row[:, None] >> torch.arange(32, dtype=torch.int32)) & 1
    return bits.flatten().nonzero()[:, 0].tolist()


def drawn(compiled: CompiledGrammar, seed: int, max_tokens: int = 400) -> Iterator[int]:
    """An output drawn from the allowed tokens; those that close something are more probable, so that it ends."""
    rng = random.Random(seed)
    tokenizer = byte_tokenizer()
    closing = {tokenizer.token_to_id(each) for each in ('"', "}", "]", '"}', "}]")} | {EOS}
    matcher, row = compiled.matcher(frozenset({EOS})), torch.zeros(-(-VOCAB_SIZE // 32), dtype=torch.int32)
    for _ in range(max_tokens):
        matcher.fill(row)
        options = allowed(row)
        preferred = [each for each in options if each in closing]
        token_id = rng.choice(preferred if preferred and rng.random() < 0.5 else options)
        yield token_id
        if token_id == EOS:
            return
        assert matcher.accept(token_id)
