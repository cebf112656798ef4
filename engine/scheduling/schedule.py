"""Input and output of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from baton.engine.kv.origin import KVOrigin
from baton.engine.kv.used_blocks import FetchedBlocks
from baton.engine.outputs import PositionLogprobs, RequestOutput, SampledToken
from baton.engine.request import BlockId, Request


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request and the range of its tokens that the step computes; drafts, if there are any, are its last tokens."""

    request: Request
    start: int  # first position to compute; all earlier positions have KV by the time the step runs
    num_new_tokens: int
    samples: bool  # the last known token is in the range, so the next one is sampled, unless the request is pooled
    source: int | None = None  # row of the token in the previous step's samples, if that step samples it
    drafts: Sequence[int] = ()  # tokens that may follow the known ones; the token after each of them is sampled too

    @classmethod
    def of(cls, request: Request, num_new_tokens: int) -> "ScheduledRequest":
        """Schedule the next tokens of a request that has no step in flight."""
        start = request.num_computed_tokens
        samples = request.pooling is None and start + num_new_tokens == request.num_tokens
        return cls(request, start, num_new_tokens, samples)

    @classmethod
    def after(cls, previous: "ScheduledRequest", source: int) -> "ScheduledRequest":
        """Schedule the token that the step in flight samples for the same request."""
        return cls(previous.request, previous.start + previous.num_new_tokens, 1, samples=True, source=source)

    def with_drafts(self, drafts: Sequence[int]) -> "ScheduledRequest":
        """Return the request with drafted tokens at the end of its range, which has the last known token."""
        return replace(self, num_new_tokens=self.num_new_tokens + len(drafts), drafts=drafts)

    @property
    def num_known_tokens(self) -> int:
        """Number of tokens in the range without the drafts."""
        return self.num_new_tokens - len(self.drafts)

    @property
    def is_last(self) -> bool:
        """Whether the range ends with the last known token."""
        return self.start + self.num_new_tokens == self.request.num_tokens

    @property
    def num_new_prompt_tokens(self) -> int:
        """Number of prompt tokens in the range."""
        return min(max(self.request.num_prompt_tokens - self.start, 0), self.num_new_tokens)


@dataclass(slots=True)
class Schedule:
    """Work of a step; requests with one new token come first."""

    requests: list[ScheduledRequest] = field(default_factory=list)
    receiving: list[Request] = field(default_factory=list)  # just got blocks for a remote prefill to fill
    failed: list[RequestOutput] = field(default_factory=list)  # of requests that failed since the last schedule
    leaves_waiting: bool = False  # a waiting request may be admitted next time even if no request ends


@dataclass(frozen=True, slots=True)
class StepResult:
    """Model's output for one scheduled request."""

    sampled: SampledToken | None = None  # None, although the request samples, if its token must be sampled again
    forced: Sequence[int] = ()  # tokens that follow the sampled ones by the request's grammar
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)
    embedding: bytes | None = None  # of a pooled request whose prompt the step completes
    further: Sequence[SampledToken] = ()  # sampled after the first: all of the sampled tokens but the last were drafted

    def output(self, request: Request, forced: list[int]) -> RequestOutput:
        """Return the output of the request, which has been updated; `forced`: the tokens that were appended so."""
        return RequestOutput(
            request_id=request.request_id,
            num_computed_tokens=request.num_computed_tokens,
            sampled=self.sampled,
            further=self.further,
            forced=forced,
            prompt_logprobs=self.prompt_logprobs,
            embedding=self.embedding,
            finish_reason=request.finish_reason,
        )


@dataclass(frozen=True, slots=True)
class Received:
    """Outcome of a remote prefill. Its token and logprobs have already been sent to the client."""

    num_tokens: int  # length of the prefix whose KV has arrived
    sampled: SampledToken | None = None  # the token after the known ones; it does not end the request
    num_prompt_logprobs: int = 0
    origins: Mapping[BlockId, frozenset[KVOrigin]] = field(default_factory=dict)  # of blocks from other models
    fetched: FetchedBlocks | None = None  # blocks from a store, if that has sent them
