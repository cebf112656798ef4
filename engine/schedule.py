"""What goes into a step, and what comes out of it."""

from dataclasses import dataclass, field

from engine.outputs import PositionLogprobs, SampledToken
from engine.request import Request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request and how many of its tokens the step computes."""

    request: Request
    num_new_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step computes the last known token, so that the next can be sampled."""
        return self.request.num_computed_tokens + self.num_new_tokens == self.request.num_tokens

    @property
    def num_new_prompt_tokens(self) -> int:
        """How many of the tokens are prompt."""
        left = self.request.num_prompt_tokens - self.request.num_computed_tokens
        return min(max(left, 0), self.num_new_tokens)


@dataclass(slots=True)
class Schedule:
    """A step's work; requests with one new token come first."""

    requests: list[ScheduledRequest] = field(default_factory=list)
    receiving: list[Request] = field(default_factory=list)  # got their blocks now; somebody else fills them


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
