"""Prefill location and KV transports of a run's requests, as a Baton server reports them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from baton.loadtool.record import RequestRecord


@dataclass(frozen=True, slots=True)
class PathSummary:
    """Counts of requests, and of prompt tokens."""

    num_remote: int  # requests prefilled by another worker than the decode worker
    num_local: int  # requests prefilled by their decode worker
    num_handed_over_tokens: int
    by_transport: Mapping[str, int]
    by_prefill_worker: Mapping[str, int]
    by_decode_worker: Mapping[str, int]


def summarise_paths(records: Sequence[RequestRecord]) -> PathSummary | None:
    """Summarize the requests with such headers; None if there are none."""
    paths = [record.path for record in records if record.path is not None]
    if not paths:
        return None
    return PathSummary(
        num_remote=sum(path.is_remote for path in paths),
        num_local=sum(not path.is_remote for path in paths),
        num_handed_over_tokens=sum(path.num_handed_over_tokens for path in paths),
        by_transport=_counts(path.kv_transport for path in paths if path.kv_transport),
        by_prefill_worker=_counts(path.prefill_worker for path in paths),
        by_decode_worker=_counts(path.decode_worker for path in paths),
    )


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
