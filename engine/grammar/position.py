"""The position of one request's output in its grammar."""

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.grammar.base import Matcher

WORD_BITS = 32


class GrammarPosition:
    """A matcher and the mask of the next token; both are functions of the output's tokens.

    A request that was moved or preempted gets the same position from its tokens. Used by one thread at a time.
    """

    def __init__(self, matcher: Matcher, num_words: int, stop_token_ids: Sequence[int], min_tokens: int) -> None:
        """stop_token_ids: tokens that may not be sampled as one of the first `min_tokens`, if there is a choice."""
        self.row: Tensor = torch.zeros(num_words, dtype=torch.int32)  # mask of the token after `num_tokens`
        self.num_tokens = 0  # output tokens that the grammar has matched
        self._matcher = matcher
        self._min_tokens = min_tokens
        self._stop_bits = _bits(stop_token_ids, num_words)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Match further output tokens and fill the mask. Raises ValueError if the output cannot continue."""
        for token_id in token_ids:
            if not self._matcher.accept(token_id):
                raise ValueError(f"token {self.num_tokens + 1} of the output does not match it")
            self.num_tokens += 1
        self._matcher.fill(self.row)
        if self.num_tokens < self._min_tokens:
            longer = self.row & ~self._stop_bits
            if longer.any():  # otherwise the output is complete, and no other token can follow
                self.row = longer
        if not self.row.any():
            raise ValueError(f"no token can follow the first {self.num_tokens} tokens of the output")


def _bits(token_ids: Sequence[int], num_words: int) -> Tensor:
    """Return a mask with the bits of some tokens, [num_words] int32."""
    bits = torch.zeros(num_words * WORD_BITS, dtype=torch.int64)
    bits[list(token_ids)] = 1
    words = (bits.view(num_words, WORD_BITS) << torch.arange(WORD_BITS)).sum(-1)
    return words.to(torch.int32)  # the upper half wraps around to negative numbers
