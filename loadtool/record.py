"""What is known of one request once it has ended."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no whole answer."""

    kind: str  # few and stable: "status 503", "timed out", ...
    message: str  # the server's or the system's words


@dataclass(frozen=True, slots=True)
class ServedPath:
    """How a Baton server says that it made an answer."""

    prefill_worker: str
    decode_worker: str
    kv_transport: str  # empty: nothing was handed over
    num_cached_tokens: int
    num_handed_over_tokens: int

    @property
    def is_remote(self) -> bool:
        """Whether another worker than the one that decoded computed the prompt."""
        return self.prefill_worker != self.decode_worker


@dataclass(slots=True)
class RequestRecord:
    """One request; times in seconds from its run's start."""

    num_asked_tokens: int  # of output
    due_s: float | None  # None: it was sent when another had ended
    sent_s: float
    ended_s: float = 0.0
    token_times_s: "array[float]" = field(default_factory=lambda: array("d"))  # of each event with news of the output
    num_prompt_tokens: int | None = None  # None: nobody said
    num_output_tokens: int = 0
    is_counted: bool = False  # by the server; else an event counts as one token
    num_cached_tokens: int | None = None
    status: int | None = None
    path: ServedPath | None = None
    failure: Failure | None = None

    @property
    def first_s(self) -> float:
        """When the first token came."""
        return self.token_times_s[0]

    @property
    def last_s(self) -> float:
        """When the last token came."""
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
        """Time per output token after the first; None if there is only one."""
        return (self.last_s - self.first_s) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else None

    @property
    def lag_s(self) -> float:
        """How much later than due it was sent, which is the client's own fault."""
        return self.sent_s - self.due_s if self.due_s is not None else 0.0


def read_path(headers: Mapping[str, str]) -> ServedPath | None:
    """What a Baton server's headers say; None for another server's."""
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
