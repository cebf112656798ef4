"""Traces in the format of Azure's LLM inference traces: times and lengths, without prompts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from baton.loadtool.datasets.files import count_of, csv_records
from baton.loadtool.errors import DatasetError
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import Vocabulary

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of the trace."""

    timestamp_s: float
    num_context_tokens: int
    num_generated_tokens: int


class AzureTrace:
    """Random prompts with the trace's times and lengths, without shared prefixes."""

    name = "azure"
    has_times = True

    def __init__(self, path: Path, vocabulary: Vocabulary, lengths: Lengths) -> None:
        """Read the trace. Raises DatasetError."""
        self._vocabulary = vocabulary
        self._lengths = lengths
        self._rows = sorted(_read(path), key=lambda row: row.timestamp_s)
        if not self._rows:
            raise DatasetError(f"{path}: no requests")

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """Yield the requests in the order of their times."""
        rng = np.random.default_rng(seed)
        for row in self._rows:
            yield LoadRequest(
                prompt=self._vocabulary.draw(rng, self._lengths.num_input(row.num_context_tokens)),
                num_output_tokens=self._lengths.num_output(row.num_generated_tokens),
                due_s=row.timestamp_s - self._rows[0].timestamp_s,
            )


def _read(path: Path) -> Iterator[TraceRow]:
    for line, row in csv_records(path, COLUMNS):
        when, *lengths = (row[column] for column in COLUMNS)
        try:
            timestamp_s = datetime.fromisoformat(when).timestamp()
        except (ValueError, TypeError) as error:
            raise DatasetError(
                f"{path}, line {line}: TIMESTAMP is {str(when)[:50]!r}, but must be like 2023-11-16 18:15:46.68"
            ) from error
        yield TraceRow(
            timestamp_s, *(count_of(each, name, path, line) for each, name in zip(lengths, COLUMNS[1:], strict=True))
        )
