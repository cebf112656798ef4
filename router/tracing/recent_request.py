"""A request that ended a short time ago, as a line in the console."""

from dataclasses import dataclass

from baton.router.tracing.request_trace import RequestTrace


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """Figures of a request that has ended. None: not known, such as of a request that was rejected."""

    id: str
    model: str  # empty: the request named none that is served
    begun_at: float  # Unix time
    duration_s: float
    ttft_s: float | None
    prompt_tokens: float | None
    output_tokens: float | None
    error: str  # class of the error that ended it; empty: it did not fail
    client_gone: bool  # the client disconnected or cancelled it


def recent_request(trace: RequestTrace) -> RecentRequest:
    """Return the figures of a request that has ended."""
    root = trace.root
    return RecentRequest(
        id=trace.request_id,
        model=trace.model,
        begun_at=trace.begun_at,  # exact: it chooses among requests with the same id
        duration_s=round(root.duration_s, 4),
        ttft_s=_number(trace, "gen_ai.latency.time_to_first_token"),
        prompt_tokens=_number(trace, "gen_ai.usage.input_tokens"),
        output_tokens=_number(trace, "gen_ai.usage.output_tokens"),
        error=root.error or "",
        client_gone=trace.is_client_gone,
    )


def _number(trace: RequestTrace, name: str) -> float | None:
    value = trace.root.attributes.get(name)
    return round(value, 4) if isinstance(value, int | float) else None
