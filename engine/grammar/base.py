"""The contracts of a grammar backend."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from baton.engine.grammar.forced import ForcedToken
from baton.engine.grammar.grammar import Grammar


class Matcher(Protocol):
    """The position of one output in its grammar. Used by one thread at a time."""

    def accept(self, token_id: int) -> bool:
        """Advance by a token; return False, without effect, if the grammar does not allow it here."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last `num_tokens` accepted tokens."""
        ...

    def forced_text(self) -> str:
        """Return the longest text that every output continues with here; empty if there is a choice."""
        ...

    def fill(self, row: Tensor) -> None:
        """Set the bits of the tokens allowed next, those that end the output only if the grammar may end here.

        row: [ceil(vocab / 32)] int32 on the CPU; bit `i % 32` of element `i // 32` is token `i`.
        """
        ...


class CompiledGrammar(Protocol):
    """A grammar compiled for a vocabulary; may be shared by threads."""

    @property
    def num_bytes(self) -> int:
        """Approximate size in memory."""
        ...

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        """Return a matcher at the start; `stop_token_ids` end an output that is complete."""
        ...


class GrammarBackend(Protocol):
    """A compiler of grammars for one vocabulary; may be shared by threads."""

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar. Raises InvalidRequest with the place of the problem."""
        ...

    def forced_token(self, text: str) -> ForcedToken | None:
        """Return the token that a forced text begins with; None if the model chooses it."""
        ...

    def apply(self, logits: Tensor, masks: Tensor, rows: Sequence[int]) -> None:
        """Set the logits of forbidden tokens to -inf in place, in the given rows.

        logits: [num_rows, vocab] float32; masks: [num_rows, ceil(vocab / 32)] int32 as in `Matcher.fill`, on the same
        device.
        """
        ...
