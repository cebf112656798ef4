"""The position of one request's output in its grammar."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.grammar.base import Matcher
from baton.engine.grammar.bitmask import WORD_BITS, has_token, mask_of, only_token
from baton.engine.grammar.forced import MAX_CHARS, ForcedToken

MAX_FORCED = 32  # tokens that are matched ahead
MAX_LOOK_AHEAD_S = 0.01  # CPU time of matching drafted tokens, beyond which the rest of them is left out


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that may follow a position, and those that must."""

    row: Tensor  # [ceil(vocab / 32)] int32: the mask; if tokens are forced, it has only the first
    forced: Sequence[int] = ()


class GrammarPosition:
    """A matcher, the tokens that the grammar forces next, and the mask of the next token.

    All are functions of the output's tokens, so a request that was moved or preempted gets the same position from them.
    Used by one thread at a time.
    """

    def __init__(
        self,
        matcher: Matcher,
        forced_token: Callable[[str], ForcedToken | None],
        num_words: int,
        stop_token_ids: Sequence[int],
        min_tokens: int,
        has_short_forced_texts: bool = True,
    ) -> None:
        """forced_token: the token that a forced text begins with, if it is not the model's choice.

        stop_token_ids: tokens that are not forced, and that may not be sampled as one of the first `min_tokens`, if
        there is a choice. has_short_forced_texts: otherwise forced texts are not used, since they may be endless.
        """
        self.row: Tensor = torch.zeros(num_words, dtype=torch.int32)  # mask of the token after `num_tokens`
        self.num_tokens = 0  # output tokens that the grammar has matched
        self.match_s = 0.0  # CPU time of matching, which bounds the matcher's memory; see `state_memory`
        self.forced: deque[int] = deque()  # tokens that follow them; if there are any, `row` has only the first
        self._matcher = matcher  # is behind the forced tokens
        self._num_accepted = 0  # tokens that the matcher has accepted
        self._text = ""  # forced text in front of and behind the matcher's position
        self._place = 0  # of the matcher in that text; equal to its length if the text is unknown
        self._forced_token = forced_token
        self._has_short_forced_texts = has_short_forced_texts
        self._min_tokens = min_tokens
        self._stop_token_ids = frozenset(stop_token_ids)
        self._stop_bits = mask_of(stop_token_ids, num_words)

    def advance(self, token_ids: Sequence[int], restart_clock: Callable[[], float] = lambda: 0.0) -> None:
        """Match further output tokens and fill the mask.

        restart_clock: returns the CPU time since its last call; called at the start and after each token, and for
        forced tokens in front of each. Raises ValueError if the output cannot continue, and what `restart_clock`
        raises.
        """
        restart_clock()  # the thread's wake-up is not matching
        for token_id in token_ids:
            is_match = self.forced.popleft() == token_id if self.forced else self._accept(token_id)
            if not is_match:
                raise ValueError(f"token {self.num_tokens + 1} of the output does not match it")
            self.num_tokens += 1
            self.match_s += restart_clock()
        if not self.forced:
            self._force(restart_clock)
        if self.forced:
            self.row.zero_()
            self.row[self.forced[0] // WORD_BITS] = _word(self.forced[0] % WORD_BITS)
        else:
            self._check_mask()

    @property
    def allowed(self) -> Allowed:
        """A copy of the mask, and of the forced tokens."""
        return Allowed(self.row.clone(), tuple(self.forced))

    def look_ahead(self, token_ids: Sequence[int], restart_clock: Callable[[], float]) -> list[Allowed]:
        """Return what is allowed behind each of `token_ids` if they follow, and go back.

        Stops at a token that the grammar does not allow, or that took long. restart_clock: as in `advance`.
        """
        row, forced, text, place = self.row.clone(), self.forced.copy(), self._text, self._place
        num_tokens, num_accepted, match_s = self.num_tokens, self._num_accepted, self.match_s
        found: list[Allowed] = []
        spent_s = 0.0
        try:
            for token_id in token_ids:
                if spent_s > MAX_LOOK_AHEAD_S or not has_token(self.row, token_id):
                    break
                before_s = self.match_s
                self.advance([token_id], restart_clock)
                spent_s += self.match_s - before_s + restart_clock()  # of matching, and of the mask
                found.append(self.allowed)
        except ValueError:  # no token can follow: that is a problem only if the output gets there
            pass
        self._matcher.rollback(self._num_accepted - num_accepted)
        self.row, self.forced, self._text, self._place = row, forced, text, place
        self.num_tokens, self._num_accepted, self.match_s = num_tokens, num_accepted, match_s
        return found

    def _accept(self, token_id: int) -> bool:
        self._text, self._place = "", 0
        is_match = self._matcher.accept(token_id)
        self._num_accepted += is_match
        return is_match

    def _force(self, restart_clock: Callable[[], float]) -> None:
        """Match the tokens that the grammar forces next, up to a bound. If there are none, fill the mask."""
        while len(self.forced) < MAX_FORCED:
            token_id = self._text_token(restart_clock)
            if token_id is None:
                self._matcher.fill(self.row)
                token_id = only_token(self.row)
                if token_id is None or not self._accept_forced(token_id, restart_clock):
                    return
                self._text, self._place = "", 0
            self.forced.append(token_id)

    def _text_token(self, restart_clock: Callable[[], float]) -> int | None:
        """Match and return the next token of a forced text; None if there is none."""
        if not self._has_short_forced_texts:
            return None
        if self._place == len(self._text):
            self._text, self._place = self._matcher.forced_text(), 0  # once for all tokens of a long text
        token = self._forced_token(self._text[self._place : self._place + MAX_CHARS])
        if token is None or not self._accept_forced(token.token_id, restart_clock):
            return None
        self._place += token.num_chars
        return token.token_id

    def _accept_forced(self, token_id: int, restart_clock: Callable[[], float]) -> bool:
        restart_clock()
        if token_id in self._stop_token_ids or not self._matcher.accept(token_id):
            return False
        self._num_accepted += 1
        self.match_s += restart_clock()
        return True

    def _check_mask(self) -> None:
        """Apply the minimum of tokens to the mask. Raises ValueError if it allows no token."""
        if self.num_tokens < self._min_tokens:
            longer = self.row & ~self._stop_bits
            if longer.any():  # otherwise the output is complete, and no other token can follow
                self.row = longer
        if not self.row.any():
            raise ValueError(f"no token can follow the first {self.num_tokens} tokens of the output")


def _word(bit: int) -> int:
    """Return the int32 that has one bit."""
    return (1 << bit) - (1 << WORD_BITS if bit == WORD_BITS - 1 else 0)
