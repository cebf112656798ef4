"""Grammars by xgrammar (Dong et al. 2024, "XGrammar: Flexible and Efficient Structured Generation Engine").

Imports xgrammar, and with it transformers, when it is imported: use `GrammarCompiler`, which does so on its threads.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import xgrammar
from tokenizers import Tokenizer
from torch import Tensor

from baton.engine.checkpoint.json_object import MAX_FILE_BYTES
from baton.engine.checkpoint.token_bytes import TokenBytes
from baton.engine.errors import InvalidRequest
from baton.engine.grammar.base import CompiledGrammar, Matcher
from baton.engine.grammar.bitmask import mask_of
from baton.engine.grammar.forced import ForcedToken, ForcedTokens
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.grammar.schema.json_schema import patterns_of
from baton.engine.grammar.schema.rewrite import MAX_WHITESPACE, compilable_schema, compilable_tag
from baton.engine.grammar.token_formats import SPECIAL_TEXT, TokenResolver

MAX_THREADS = 8  # of one compile, at most half of the cores
ANY_OBJECT = '{"type":"object"}'
SOURCE_PLACE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")
MAX_ERROR_CHARS = 400


class Vocabulary:
    """The texts of a tokenizer's tokens, as a grammar sees them."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(
            token_id for token_id, token in added.items() if token.special and token_id < vocab_size
        )
        self._added = {token.content: token_id for token_id, token in added.items()}
        token_bytes = TokenBytes(tokenizer)
        # Bytes of each token id; empty for special tokens, which are not part of a text, and for ids without a token.
        self.texts = [b"" if place in self.special else token_bytes[place] for place in range(vocab_size)]
        # The first of several with the same text.
        self._ids = {text: vocab_size - 1 - place for place, text in enumerate(reversed(self.texts)) if text}

    def token_id(self, text: str) -> int | None:
        """Return the id of a token by its text, special or not; None if there is none."""
        if text in self._added:
            return self._added[text]
        return self._ids.get(text.encode())


class XGrammarBackend:
    """xgrammar's compiler for one vocabulary."""

    def __init__(self, directory: str, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """Read the vocabulary of a model's directory. Raises InvalidRequest if it has no usable tokenizer."""
        tokenizer = _read_tokenizer(directory)
        vocabulary = Vocabulary(tokenizer, vocab_size)
        self._forced = ForcedTokens(tokenizer, vocabulary.texts)
        self._tokens = TokenResolver(vocabulary.token_id, vocab_size)
        self._special = vocabulary.special - eos_token_ids  # these only end outputs
        self._num_words = -(-vocab_size // 32)
        self._text_bits = ~mask_of(self._special, self._num_words)
        info = xgrammar.TokenizerInfo(
            [SPECIAL_TEXT if place in self._special else text for place, text in enumerate(vocabulary.texts)],
            xgrammar.VocabType.RAW,
            vocab_size=vocab_size,
            stop_token_ids=sorted(eos_token_ids),
        )
        num_threads = min(MAX_THREADS, max(1, len(os.sched_getaffinity(0)) // 2))
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=num_threads, cache_enabled=False)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar. Raises InvalidRequest with the place of the problem."""
        try:
            return self._compile(grammar)
        except (RuntimeError, ValueError) as error:
            raise InvalidRequest(_problem(error)) from None

    def forced_token(self, text: str) -> ForcedToken | None:
        """Return the token that a forced text begins with; see `GrammarBackend`."""
        return self._forced.first(text)

    def apply(self, logits: Tensor, masks: Tensor, rows: Sequence[int]) -> None:
        """Set the logits of forbidden tokens to -inf in place; see `GrammarBackend`."""
        xgrammar.apply_token_bitmask_inplace(logits, masks, vocab_size=logits.shape[1], indices=list(rows))

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        if grammar.kind is not GrammarKind.STRUCTURAL_TAG:
            return XGrammar(self._compile_text(grammar), self._text_bits, self._special)
        found = self._tokens.resolve(compilable_tag(grammar.parsed()))
        hidden = self._special - found.token_ids
        bits = ~mask_of(hidden, self._num_words) if found.token_ids else self._text_bits
        compiled = self._compiler.compile_structural_tag(json.dumps(found.tag))
        return XGrammar(compiled, bits, hidden)

    def _compile_text(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        """Compile a grammar that names no tokens."""
        compiler, source = self._compiler, grammar.source
        match grammar.kind:
            case GrammarKind.JSON_OBJECT:
                return compiler.compile_json_schema(ANY_OBJECT, strict_mode=False, max_whitespace_cnt=MAX_WHITESPACE)
            case GrammarKind.JSON_SCHEMA:
                schema = json.loads(source)
                for pattern in patterns_of(schema):  # the converter of schemas ignores some of their syntax
                    xgrammar.Grammar.from_regex(pattern)
                return compiler.compile_json_schema(
                    json.dumps(compilable_schema(schema)),
                    strict_mode=not grammar.is_open,
                    max_whitespace_cnt=MAX_WHITESPACE,
                )
            case GrammarKind.REGEX:
                return compiler.compile_regex(source)
            case GrammarKind.CHOICE:
                options = " | ".join(json.dumps(each, ensure_ascii=False) for each in json.loads(source))
                return compiler.compile_grammar(f"root ::= {options}")
            case _:
                return compiler.compile_grammar(source)


class XGrammar:
    """A compiled grammar."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, bits: Tensor, hidden: frozenset[int]) -> None:
        """hidden: special tokens, which it never allows; bits: a mask without them."""
        self._compiled = compiled
        self._bits = bits
        self._hidden = hidden

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        return int(self._compiled.memory_size_bytes)

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        """Return a matcher at the start; `stop_token_ids` end an output that is complete."""
        matcher = xgrammar.GrammarMatcher(self._compiled, override_stop_tokens=sorted(stop_token_ids))
        hidden, bits = self._hidden - stop_token_ids, self._bits
        if len(hidden) < len(self._hidden):
            bits = ~mask_of(hidden, len(bits))
        return XGrammarMatcher(matcher, bits, hidden)


class XGrammarMatcher:
    """The position of one output in its grammar."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, bits: Tensor, hidden: frozenset[int]) -> None:
        """The arguments are as in `XGrammar`."""
        self._matcher = matcher
        self._bits = bits
        self._hidden = hidden

    def accept(self, token_id: int) -> bool:
        """Advance by a token; return False, without effect, if the grammar does not allow it here."""
        return token_id not in self._hidden and bool(self._matcher.accept_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens."""
        self._matcher.rollback(num_tokens)

    def forced_text(self) -> str:
        """Return the longest text that every output continues with here; empty if there is a choice.

        Tokens that a structural tag names are not seen as a choice, and the search may be endless: see
        `has_short_forced_texts`.
        """
        try:
            return str(self._matcher.find_jump_forward_string())
        except UnicodeDecodeError:  # it ends within a character
            return ""

    def fill(self, row: Tensor) -> None:
        """Set the bits of the tokens allowed next, [ceil(vocab / 32)] int32; see `Matcher`."""
        self._matcher.fill_next_token_bitmask(row[None])
        row &= self._bits


def _read_tokenizer(directory: str) -> Tokenizer:
    """Return the tokenizer of a model's directory. Raises InvalidRequest if it has no usable tokenizer.json."""
    path = Path(directory) / "tokenizer.json"
    if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidRequest("structured output needs a tokenizer.json on every worker, the model's or --tokenizer's")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise InvalidRequest(
            f"structured output needs the model's tokenizer.json, which is damaged: {error}"
        ) from error


def _problem(error: Exception) -> str:
    """Return xgrammar's message without the place in its own source."""
    return SOURCE_PLACE.sub("", str(error).strip()).strip()[:MAX_ERROR_CHARS]
