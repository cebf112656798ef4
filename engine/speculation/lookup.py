"""Drafts that are looked up, in so little time that it does not count."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Protocol

from baton.engine.request import FinishRule, Request
from baton.engine.speculation.base import Drafted, Offer


class Lookup(Protocol):
    """A source of tokens that are known without computation."""

    def begin_step(self) -> None:
        """Begin the proposals for another step, whose work in all is bounded."""
        ...

    def propose(self, request: Request, limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that may follow the known ones, in order; none if there is no good guess."""
        ...


class LookupDrafter:
    """Drafter whose tokens are all looked up when they are offered."""

    def __init__(self, lookup: Lookup, finish_rule: FinishRule) -> None:
        self._lookup = lookup
        self._finish_rule = finish_rule
        self._found: dict[Request, Sequence[int]] = {}  # tokens found in the current step

    def begin_step(self) -> None:
        """Forget the tokens of the last step."""
        self._found.clear()
        self._lookup.begin_step()

    def offer(self, request: Request, limit: int) -> Offer | None:
        """Offer the tokens that are found, up to one that would end the request; see `Drafter`."""
        proposed = self._lookup.propose(request, limit)
        found = list(takewhile(lambda token_id: not self._finish_rule.is_end(request, token_id), proposed))
        if not found:
            return None
        self._found[request] = found
        return Offer(len(found), found[0])

    def pass_s(self, num_requests: int) -> float:
        """Return 0: the tokens are there."""
        return 0.0

    def draft(self, wanted: Mapping[Request, int], preparation_s: float) -> Drafted:
        """Return the tokens that were found."""
        return Drafted({request: self._found[request][:count] for request, count in wanted.items()})
