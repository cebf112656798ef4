"""The contract of drafters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baton.engine.request import Request


@dataclass(frozen=True, slots=True)
class Offer:
    """Tokens that a drafter can draft for a request."""

    num_tokens: int
    first_token: int | None = None  # the first of them, if it is known before they are drafted
    is_ready: bool = True  # False: the drafter must prepare the request before it can draft
    preparation_s: float = 0.0  # estimated time that this takes


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafted tokens of some requests, and the time that they took."""

    token_ids: Mapping[Request, Sequence[int]] = field(default_factory=dict)
    drafting_s: float = 0.0
    preparation_s: float = 0.0  # for requests that were not ready


class Drafter(Protocol):
    """A source of tokens that may follow those of requests. Called by the engine's thread."""

    def begin_step(self) -> None:
        """Begin the offers for another step, whose work in all is bounded."""
        ...

    def offer(self, request: Request, limit: int) -> Offer | None:
        """Offer at most `limit` tokens that may follow the known ones; None if there is no good guess."""
        ...

    def pass_s(self, num_requests: int) -> float:
        """Return the estimated time of drafting one more token for each of some requests; 0: none, or not known."""
        ...

    def draft(self, wanted: Mapping[Request, int], preparation_s: float) -> Drafted:
        """Draft at most these numbers of tokens, as were offered in this step, in order, none of which is an end.

        A draft is empty if its first token would be an end. Requests that are not ready, or lack memory, have none;
        those that are not ready are prepared, which takes about `preparation_s` at most.
        """
        ...
