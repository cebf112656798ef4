"""The requests of front ends to a simulated engine, and its outputs."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """A prompt and the number of tokens to generate."""

    request_id: str  # unique among the requests of an engine
    token_ids: list[int]
    num_output_tokens: int
    cache_salt: str = ""  # keeps tenants' caches apart
    priority: int = 0  # lower is served first

    def to_engine(self, receives_kv: bool = False) -> Request:
        """Return the engine's request that generates the output."""
        return self._request(self.num_output_tokens, receives_kv=receives_kv, keep_blocks=False)

    def to_prefill(self) -> Request:
        """Return the engine's request that computes the prompt for another engine, and one token."""
        return self._request(1, receives_kv=False, keep_blocks=True)

    def _request(self, max_tokens: int, receives_kv: bool, keep_blocks: bool) -> Request:
        return Request(
            request_id=RequestId(self.request_id),
            token_ids=list(self.token_ids),
            num_prompt_tokens=len(self.token_ids),
            sampling=SamplingParams(max_tokens=max_tokens),
            cache_salt=self.cache_salt,
            priority=self.priority,
            receives_kv=receives_kv,
            receives_whole=receives_kv,
            keep_blocks=keep_blocks,
        )


@dataclass(frozen=True, slots=True)
class SimulatedToken:
    """One token of a request's output."""

    token_id: int
    is_last: bool
    num_cached_tokens: int  # tokens of the prompt found in this engine's cache


@dataclass(frozen=True, slots=True)
class PrefilledChunk:
    """The progress of a prompt that is computed for another engine."""

    num_computed_tokens: int
    num_cached_tokens: int  # those of the computed tokens that were found in the cache
    first_token: int | None = None  # sampled with the last chunk


OpenPrefill = Callable[[int], AsyncGenerator[PrefilledChunk, None]]
