"""Records and runs for tests, as a load would produce them."""

from array import array

from baton.loadtool.arrivals import Arrivals, RequestRate
from baton.loadtool.dispatch import LoadRun
from baton.loadtool.record import Failure, RequestRecord, ServedPath


def completed(
    sent_s: float = 0.0,
    token_times_s: tuple[float, ...] = (0.1, 0.2, 0.4),
    due_s: float | None = None,
    num_prompt_tokens: int = 10,
    num_cached_tokens: int | None = None,
    path: ServedPath | None = None,
) -> RequestRecord:
    """Return a completed record with a token at each of these times after sending."""
    times = array("d", [sent_s + each for each in token_times_s])
    return RequestRecord(
        num_asked_tokens=len(times),
        due_s=due_s,
        sent_s=sent_s,
        ended_s=times[-1],
        token_times_s=times,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=len(times),
        is_counted=True,
        num_cached_tokens=num_cached_tokens,
        status=200,
        path=path,
    )


def failed(
    status: int | None, kind: str, message: str = "why", sent_s: float = 0.0, took_s: float = 0.1
) -> RequestRecord:
    """Return a failed record."""
    record = RequestRecord(5, None, sent_s, sent_s + took_s, status=status)
    record.failure = Failure(kind, message)
    return record


def run_of(*records: RequestRecord, arrivals: Arrivals | None = None, is_whole: bool = True) -> LoadRun:
    """Return a run with these records."""
    return LoadRun(
        arrivals=arrivals or RequestRate(2.0),
        records=list(records),
        elapsed_s=10.0,
        client_cpu_s=1.0,
        is_whole=is_whole,
    )
