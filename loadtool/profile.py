"""Step profile of a load: each request's latency, size and concurrent load, to fit step times to.

The file is JSON: `format`, `model`, `endpoint`, `when`, and `requests`, a list of objects with the fields of
`ProfiledRequest`. `*_while_prefill` is a mean from sending to the first token, `*_while_decode` from there to the last.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from baton.loadtool.concurrency import Concurrency
from baton.loadtool.dispatch import LoadRun
from baton.loadtool.record import RequestRecord

FORMAT = "baton step profile, version 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRequest:
    """One completed request."""

    run: int  # index in the sweep
    sent_s: float  # from the run's start
    prompt_tokens: int
    cached_tokens: int  # prompt tokens from a prefix cache
    uncached_tokens: int  # the other prompt tokens
    handed_over_tokens: int  # prompt tokens from a prefill worker; 0: prefilled by the decode worker
    output_tokens: int
    ttft_s: float
    tpot_s: float | None  # None: only one output token
    prefilling_while_prefill: float  # mean number of requests without a first token, including this one
    decoding_while_prefill: float  # mean number of requests with a first token
    prefilling_while_decode: float
    decoding_while_decode: float  # the same, including this one
    prefill_worker: str  # empty: not reported
    decode_worker: str
    kv_transport: str


def profile(runs: Sequence[LoadRun]) -> list[ProfiledRequest]:
    """Return the requests whose server reported cached tokens."""
    return [request for place, run in enumerate(runs) for request in _profile_run(place, run)]


def profile_file(requests: Sequence[ProfiledRequest], model: str, endpoint: str, when: str) -> dict[str, object]:
    """Return the content of the profile file."""
    return {
        "format": FORMAT,
        "model": model,
        "endpoint": endpoint,
        "when": when,
        "requests": [asdict(request) for request in requests],
    }


def _profile_run(place: int, run: LoadRun) -> list[ProfiledRequest]:
    done = [record for record in run.records if record.failure is None]
    firsts = [record.first_s for record in done]
    prefilling = Concurrency([record.sent_s for record in done], firsts)
    decoding = Concurrency(firsts, [record.last_s for record in done])
    return [
        _profiled(place, record, cached, prefilling, decoding)
        for record in done
        if (cached := _cached(record)) is not None and record.num_prompt_tokens is not None
    ]


def _cached(record: RequestRecord) -> int | None:
    if record.num_cached_tokens is not None:
        return record.num_cached_tokens
    return record.path.num_cached_tokens if record.path is not None else None


def _profiled(
    place: int, record: RequestRecord, num_cached: int, prefilling: Concurrency, decoding: Concurrency
) -> ProfiledRequest:
    num_prompt_tokens = record.num_prompt_tokens or 0
    path = record.path
    return ProfiledRequest(
        run=place,
        sent_s=record.sent_s,
        prompt_tokens=num_prompt_tokens,
        cached_tokens=num_cached,
        uncached_tokens=num_prompt_tokens - num_cached,
        handed_over_tokens=path.num_handed_over_tokens if path is not None else 0,
        output_tokens=record.num_output_tokens,
        ttft_s=record.ttft_s,
        tpot_s=record.tpot_s,
        prefilling_while_prefill=prefilling.mean(record.sent_s, record.first_s),
        decoding_while_prefill=decoding.mean(record.sent_s, record.first_s),
        prefilling_while_decode=prefilling.mean(record.first_s, record.last_s),
        decoding_while_decode=decoding.mean(record.first_s, record.last_s),
        prefill_worker=path.prefill_worker if path is not None else "",
        decode_worker=path.decode_worker if path is not None else "",
        kv_transport=path.kv_transport if path is not None else "",
    )
