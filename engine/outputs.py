"""Outputs and statistics of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.errors import EngineError
from baton.engine.grammar.figures import GrammarCounters
from baton.engine.kv.prefix_pins import PinFigures
from baton.engine.offload.counters import OffloadCounters
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.speculation.figures import SpeculationCounters


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one candidate token at a position; `rank` is 1 for the most probable one."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities of the token at a position and of the best candidates, most probable first."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A sampled token, with its log-probabilities if requested."""

    token_id: int
    logprobs: PositionLogprobs | None = None


@dataclass(slots=True)
class RequestOutput:
    """Result of a step for one request."""

    request_id: RequestId
    num_computed_tokens: int  # after the step
    sampled: SampledToken | None = None  # None after a prompt chunk that was not the last, or if a mask was late
    further: Sequence[SampledToken] = ()  # sampled in the same step after it, since drafted tokens were right
    forced: list[int] = field(default_factory=list)  # tokens that follow the sampled ones by the request's grammar
    prompt_logprobs: list[PositionLogprobs] = field(default_factory=list)  # of prompt positions from 1 on, in order
    embedding: bytes | None = None  # float32, little-endian; with FinishReason.STOP of a pooled request
    finish_reason: FinishReason | None = None
    error: EngineError | None = None  # with FinishReason.ERROR

    @property
    def all_sampled(self) -> list[SampledToken]:
        """The sampled tokens, in order."""
        return [self.sampled, *self.further] if self.sampled is not None else []

    @property
    def token_ids(self) -> list[int]:
        """The new output tokens."""
        return [*(each.token_id for each in self.all_sampled), *self.forced]


@dataclass(slots=True)
class StepOutput:
    """Results of a step."""

    outputs: list[RequestOutput] = field(default_factory=list)
    receiving: list[Request] = field(default_factory=list)  # have blocks for a remote prefill to fill
    started_at_s: float = 0.0  # monotonic clock when the step was launched; 0: no step
    finished_at_s: float = 0.0  # monotonic clock when the step's results were known


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """A rank of an expert-parallel group, and its experts in the layer with the most uneven load."""

    rank: int
    num_ranks: int
    epoch: int  # of the group; each change of its ranks begins a new one
    layer: int  # among the layers with experts; the first one until a rebalance has compared them
    experts: Sequence[int]  # that the rank holds in this layer
    imbalance: float  # of this layer: the busiest rank's tokens over the mean rank's; 0: not known yet
    num_rows: int  # token rows of all ranks that this rank's experts have computed since start, in all layers
    group: str  # name of the group


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
    prefill_tokens_per_s: float  # recent, without a step's fixed time; 0: not known yet
    decode_step_s: float  # recent time of a step with one sequence; 0: not known yet
    decode_sequence_s: float  # recent time that each further sequence adds to a step
    num_awaited_blocks: int = 0  # blocks that waiting requests lack
    num_receiving: int = 0  # of the waiting requests: those whose KV is computed elsewhere and not here yet
    grammars: GrammarCounters = field(default_factory=GrammarCounters)
    speculation: SpeculationCounters = field(default_factory=SpeculationCounters)
    pins: PinFigures = field(default_factory=PinFigures)
    offload: OffloadCounters = field(default_factory=OffloadCounters)
    resident_adapters: Sequence[str] = ()  # names of LoRA adapters that a step can use without a copy to the device
    adapter_load_s: float = 0.0  # of the last such copy; 0: there was none
    experts: ExpertShare | None = None  # None: in no expert-parallel group, or it has not formed


@dataclass(frozen=True, slots=True)
class ExpertFigures:
    """Statistics of an expert-parallel group as seen by one rank; layers without experts are not counted."""

    epoch: int
    num_ranks: int
    rows: list[int]  # by layer: token rows of all ranks that this rank's experts have computed since start
    busiest_shares: list[float]  # by layer: the most frequent expert's share of this rank's routed tokens
    imbalances: list[float]  # by layer: the busiest rank's tokens over the mean rank's, at the last rebalance
