"""What goes into a step, and what comes out of it."""

from dataclasses import dataclass, field

from baton.engine.outputs import PositionLogprobs, SampledToken
from baton.engine.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request and which of its tokens the step computes."""

    request: Request
    start: int  # place of the first of them: the KV of those before it is there, or will be when the step begins
    num_new_tokens: int
    samples: bool  # the last of them is the last known token: the next is sampled
    source: int | None = None  # of the one token, if the step before samples it: its row there

    @classmethod
    def of(cls, request: Request, num_new_tokens: int) -> "ScheduledRequest":
        """The next tokens of a request of which nothing is under way."""
        start = request.num_computed_tokens
        return cls(request, start, num_new_tokens, samples=start + num_new_tokens == request.num_tokens)

    @classmethod
    def behind(cls, previous: "ScheduledRequest", source: int) -> "ScheduledRequest":
        """The token that the step under way samples for the same request."""
        return cls(previous.request, previous.start + previous.num_new_tokens, 1, samples=True, source=source)

    @property
    def num_new_prompt_tokens(self) -> int:
        """How many of the tokens are prompt."""
        return min(max(self.request.num_prompt_tokens - self.start, 0), self.num_new_tokens)


@dataclass(slots=True)
class Schedule:
    """A step's work; requests with one new token come first."""

    requests: list[ScheduledRequest] = field(default_factory=list)
    receiving: list[Request] = field(default_factory=list)  # got their blocks now; somebody else fills them
    leaves_waiting: bool = False  # who waits may be admitted next time, though nobody ends


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the model said about one scheduled request."""

    sampled: SampledToken | None = None
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Received:
    """What came of a request that was computed elsewhere, all of it already passed on."""

    num_tokens: int  # whose KV is here, from the first on
    sampled: SampledToken | None = None  # the token behind the known ones; it does not end the request
    num_prompt_logprobs: int = 0
