"""The contract of drafters."""

from typing import Protocol

from baton.engine.request import Request


class Drafter(Protocol):
    """A source of tokens that may follow those of a request. Called by the engine's thread."""

    def begin_step(self) -> None:
        """Begin the proposals for another step, whose work in all is bounded."""
        ...

    def propose(self, request: Request, limit: int) -> list[int]:
        """Return at most `limit` tokens that may follow the known ones, in order; none if there is no good guess."""
        ...
