"""The grammars of an engine: xgrammar, tried in a separate process before it compiles here."""

from functools import partial
from pathlib import Path

from baton.engine.grammar.base import GrammarBackend
from baton.engine.grammar.compiler import GrammarCompiler
from baton.engine.grammar.masks import GrammarMasks
from baton.engine.grammar.trial import ProcessTrial


def make_grammar_masks(tokenizer: Path, vocab_size: int, eos_token_ids: frozenset[int]) -> GrammarMasks:
    """Return the masks of all requests; the backend is loaded at the first grammar."""
    vocabulary = tokenizer, vocab_size, eos_token_ids
    make_backend, make_trial = partial(_xgrammar_backend, *vocabulary), partial(ProcessTrial, *vocabulary)
    return GrammarMasks(GrammarCompiler(make_backend, make_trial, vocab_size), eos_token_ids)


def _xgrammar_backend(directory: Path, vocab_size: int, eos_token_ids: frozenset[int]) -> GrammarBackend:
    """Return xgrammar's backend. Raises InvalidRequest if the directory has no usable tokenizer."""
    from baton.engine.grammar.xgrammar_backend import XGrammarBackend  # optional, and takes seconds to import

    return XGrammarBackend(str(directory), vocab_size, eos_token_ids)
