"""What each request took, beside what it asked for and what went on meanwhile: what a model of step times is fitted to.

The file is JSON: `format`, `model`, `endpoint`, `when`, and `requests`, a list of objects with the fields of
`ProfiledRequest`. Means "while" are over the time from sending to the first token, or from the first token to the last.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from baton.loadtool.concurrency import Concurrency
from baton.loadtool.dispatch import LoadRun
from baton.loadtool.record import RequestRecord

FORMAT = "baton step profile, version 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRequest:
    """One request that was answered whole."""

    run: int  # its place in the sweep
    sent_s: float  # from the run's start
    prompt_tokens: int
    cached_tokens: int  # of the prompt, which nobody had to compute
    uncached_tokens: int  # the others
    handed_over_tokens: int  # of the prompt, from a prefill worker; 0: prefilled where it was decoded
    output_tokens: int
    ttft_s: float
    tpot_s: float | None  # None: one token only
    prefilling_while_prefill: float  # mean number of requests without a first token, this one included
    decoding_while_prefill: float  # mean number of requests that had theirs
    prefilling_while_decode: float
    decoding_while_decode: float  # this one included
    prefill_worker: str  # empty: the server does not say
    decode_worker: str
    kv_transport: str


def profile(runs: Sequence[LoadRun]) -> list[ProfiledRequest]:
    """The requests whose server said how many of their tokens were cached."""
    return [request for place, run in enumerate(runs) for request in _profile_run(place, run)]


def profile_file(requests: Sequence[ProfiledRequest], model: str, endpoint: str, when: str) -> dict[str, object]:
    """The content of the file."""
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
