"""Record of one request."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a request did not complete."""

    kind: str  # one of a few stable texts: "status 503", "timed out", ...
    message: str  # from the server or the system


@dataclass(frozen=True, slots=True)
class ServedPath:
    """Workers and transport that served a request, from a Baton server's headers."""

    prefill_worker: str
    decode_worker: str
    kv_transport: str  # empty: no handover
    num_cached_tokens: int
    num_handed_over_tokens: int

    @property
    def is_remote(self) -> bool:
        """Whether another worker than the decode worker prefilled the prompt."""
        return self.prefill_worker != self.decode_worker


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are in seconds from its run's start."""

    num_asked_tokens: int  # requested output tokens
    due_s: float | None  # None: closed loop
    sent_s: float
    ended_s: float = 0.0
    token_times_s: "array[float]" = field(default_factory=lambda: array("d"))  # of each event with output
    num_prompt_tokens: int | None = None  # None: unknown
    num_output_tokens: int = 0
    is_counted: bool = False  # whether the server reported output tokens; otherwise an event is one
    num_cached_tokens: int | None = None
    status: int | None = None
    path: ServedPath | None = None
    failure: Failure | None = None

    @property
    def first_s(self) -> float:
        """Arrival time of the first token."""
        return self.token_times_s[0]

    @property
    def last_s(self) -> float:
        """Arrival time of the last token."""
        return self.token_times_s[-1]

    @property
    def ttft_s(self) -> float:
        """Time to first token: from sending to its arrival."""
        return self.first_s - self.sent_s

    @property
    def e2e_s(self) -> float:
        """End to end: from sending to the last token."""
        return self.last_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for a single token."""
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else None

    @property
    def lag_s(self) -> float:
        """Delay of sending behind the due time, caused by the client."""
        return self.sent_s - self.due_s if self.due_s is not None else 0.0


def read_path(headers: Mapping[str, str]) -> ServedPath | None:
    """Return the path in a Baton server's headers; None for other servers."""
    try:
        return ServedPath(
            prefill_worker=headers["x-baton-prefill"],
            decode_worker=headers["x-baton-decode"],
            kv_transport=headers["x-baton-kv-transport"],
            num_cached_tokens=int(headers["x-baton-cached-tokens"]),
            num_handed_over_tokens=int(headers["x-baton-handed-over-tokens"]),
        )
    except (KeyError, ValueError):
        return None
