"""What front ends ask of a simulated engine, and what it says."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """A prompt and how many tokens come after it."""

    request_id: str  # no two of an engine at a time
    token_ids: list[int]
    num_output_tokens: int
    cache_salt: str = ""  # keeps tenants' caches apart
    priority: int = 0  # lower is served earlier

    def to_engine(self, receives_kv: bool = False) -> Request:
        """The engine's request that generates."""
        return self._request(self.num_output_tokens, receives_kv=receives_kv, keep_blocks=False)

    def to_prefill(self) -> Request:
        """The engine's request that computes the prompt for somebody else, and one token."""
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
            keep_blocks=keep_blocks,
        )


@dataclass(frozen=True, slots=True)
class SimulatedToken:
    """One token of a request."""

    token_id: int
    is_last: bool
    num_cached_tokens: int  # of the prompt, found in this engine's cache


@dataclass(frozen=True, slots=True)
class PrefilledChunk:
    """How far a prompt is at the engine that computes it for another."""

    num_computed_tokens: int
    num_cached_tokens: int  # of these, not computed there
    first_token: int | None = None  # sampled with the last chunk
    num_pulled_tokens: int = 0  # of the cached ones, come from a third engine


OpenPrefill = Callable[[int], AsyncGenerator[PrefilledChunk, None]]
