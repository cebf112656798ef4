"""Traces in Mooncake's format: times, lengths and shared prefixes (kvcache-ai/Mooncake, FAST '25)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from baton.loadtool.datasets.files import count_of, csv_records, json_records
from baton.loadtool.errors import DatasetError
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import TokenIds, Vocabulary

HASH_TOKENS = 512  # tokens per hash id
FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
CSV_COLUMNS = ("timestamp_ms", "input_length", "output_length", "hash_ids")  # of benchmarks/data
MAX_CACHED_RUNS = 1 << 14


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One request of the trace."""

    timestamp_ms: int
    input_length: int
    output_length: int
    hash_ids: Sequence[int]


class MooncakeTrace:
    """Random prompts in which equal hash ids give equal tokens, so that prefix caches see the trace's sharing."""

    name = "mooncake"
    has_times = True

    def __init__(self, path: Path, vocabulary: Vocabulary, lengths: Lengths) -> None:
        """Read the trace. Raises DatasetError."""
        self._vocabulary = vocabulary
        self._lengths = lengths
        self._run_tokens = max(1, round(HASH_TOKENS * lengths.scale))
        self._records = sorted(_read(path), key=lambda record: record.timestamp_ms)
        if not self._records:
            raise DatasetError(f"{path}: no requests")

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """Yield the requests in the order of their times."""

        @lru_cache(MAX_CACHED_RUNS)
        def run(hash_id: int) -> TokenIds:
            return self._vocabulary.draw(np.random.default_rng((seed, 0, hash_id)), self._run_tokens)

        first_ms = self._records[0].timestamp_ms
        for number, record in enumerate(self._records):
            num_tokens = self._lengths.num_input(record.input_length)
            runs = [run(hash_id) for hash_id in record.hash_ids[: -(-num_tokens // self._run_tokens)]]
            num_missing = num_tokens - self._run_tokens * len(runs)
            if num_missing > 0:  # the hash ids cover less than the prompt's length
                runs.append(self._vocabulary.draw(np.random.default_rng((seed, 1, number)), num_missing))
            yield LoadRequest(
                prompt=np.concatenate(runs)[:num_tokens],
                num_output_tokens=self._lengths.num_output(record.output_length),
                due_s=(record.timestamp_ms - first_ms) / 1000,
            )


def _read(path: Path) -> Iterator[TraceRecord]:
    if path.suffix == ".csv":
        for line, row in csv_records(path, CSV_COLUMNS):
            yield _record([row[name] for name in CSV_COLUMNS[:3]], _expand(row["hash_ids"], path, line), path, line)
        return
    for line, record in json_records(path):
        missing = [name for name in FIELDS if name not in record]
        if missing:
            raise DatasetError(f"{path}, line {line}: no {', '.join(missing)}, which a Mooncake trace has")
        hash_ids = record["hash_ids"]
        if not isinstance(hash_ids, list):
            raise DatasetError(f"{path}, line {line}: hash_ids is not a list")
        ids = [count_of(hash_id, "a hash id", path, line) for hash_id in hash_ids]
        yield _record([record[name] for name in FIELDS[:3]], ids, path, line)


def _record(numbers: Sequence[object], hash_ids: Sequence[int], path: Path, line: int) -> TraceRecord:
    """Make a record from a line's numbers, in the order of `FIELDS`."""
    timestamp, num_input, num_output = (
        count_of(number, name, path, line) for number, name in zip(numbers, FIELDS, strict=False)
    )
    return TraceRecord(timestamp, num_input, num_output, hash_ids)


def _expand(runs: str, path: Path, line: int) -> list[int]:
    """Expand ranges like "0 14-27" into numbers."""
    hash_ids: list[int] = []
    for part in runs.split():
        first, _, last = part.partition("-")
        ends = [count_of(end, "a hash id", path, line) for end in (first, last or first)]
        hash_ids += range(ends[0], ends[1] + 1)
    return hash_ids
