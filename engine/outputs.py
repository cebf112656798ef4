"""What an engine says after each step."""

from dataclasses import dataclass, field

from baton.engine.request import FinishReason, Request, RequestId


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A candidate for a position; `rank` is 1 for the most probable one."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The token that stands at a position, and the best candidates for it, most probable first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One sampled token."""

    token_id: int
    logprobs: PositionLogprobs | None = None


@dataclass(slots=True)
class RequestOutput:
    """What a step did for one request."""

    request_id: RequestId
    num_computed_tokens: int  # after the step
    sampled: SampledToken | None = None  # None: a prompt chunk that was not the last
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)  # of prompt positions from 1 on, in order
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class StepOutput:
    """What a step did."""

    outputs: list[RequestOutput] = field(default_factory=list)
    receiving: list[Request] = field(default_factory=list)  # got their blocks; somebody must fill them
    finished_at_s: float = 0.0  # monotonic clock when the step's results were known


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Load and counters of an engine."""

    num_running: int
    num_waiting: int
    num_queued_tokens: int
    num_free_blocks: int
    num_blocks: int
    step_s: float
    num_generated_tokens: int
    num_prefilled_tokens: int
    num_preemptions: int
    num_cached_tokens: int
    num_looked_up_tokens: int
    prefill_tokens_per_s: float  # lately, beside a step's fixed time; 0: not known yet
    decode_step_s: float  # of a step with one sequence, lately; 0: not known yet
    decode_sequence_s: float  # that each further sequence adds, lately


@dataclass(frozen=True, slots=True)
class ExpertFigures:
    """A rank's view of its expert-parallel group; layers are those with experts."""

    epoch: int
    num_ranks: int
    rows: list[int]  # of all ranks' tokens, computed by this rank's experts since its start, by layer
    busiest_shares: list[float]  # by layer: of the experts that this rank's tokens chose, how often the same one
    imbalances: list[float]  # by layer: the busiest rank's tokens over the mean rank's, at the last rebalance
