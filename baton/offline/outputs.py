"""Outputs of offline inference, under vLLM's names."""

from dataclasses import dataclass

from baton.offline.adapters import LoRARequest


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log probability of one candidate for a position."""

    logprob: float
    rank: int | None = None  # 1 for the most probable; None: the sampled token is not among the requested best ones
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]  # by token id, the best ones in order; the sampled token is always among them


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int  # among the `n` completions of the prompt
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None  # None without logprobs
    logprobs: list[PositionLogprobs] | None
    finish_reason: str | None  # stop or length
    stop_reason: int | str | None  # the stop token or stop string; None: an end token, or the length

    def finished(self) -> bool:
        """Return whether the completion has ended: always, because outputs are returned whole."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The completions of one prompt."""

    request_id: str
    prompt: str | None  # None if the prompt was given as tokens
    prompt_token_ids: list[int]
    prompt_logprobs: list[PositionLogprobs | None] | None  # the first position has none
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int  # prompt tokens that no worker had to compute
    lora_request: LoRARequest | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """One embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Number of dimensions."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The embedding of one prompt."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """The similarity of two texts."""

    score: float  # from -1 to 1


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """The similarity of one pair of texts."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]  # of both
    finished: bool
