"""Report of a load: its settings and results."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from baton.loadtool.dispatch import LoadRun
from baton.loadtool.record import RequestRecord
from baton.loadtool.slo import Slo
from baton.loadtool.summary import RunSummary, summarise
from baton.loadtool.target import Target

FORMAT = "baton bench, version 1"


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run and its summary."""

    run: LoadRun
    summary: RunSummary


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Runs of a sweep, in order."""

    target: Target
    dataset: str
    settings: Mapping[str, object]  # options set by the user, without secrets
    when: str  # start time, ISO 8601
    runs: Sequence[MeasuredRun]

    @property
    def model(self) -> str:
        """Model name at the server."""
        return self.target.model or ""

    @property
    def endpoint(self) -> str:
        """Full URL of the API endpoint."""
        return self.target.base_url + self.target.path

    def to_json(self, with_requests: bool) -> dict[str, object]:
        """Return all results as JSON; `with_requests` includes every request."""
        return {
            "format": FORMAT,
            "when": self.when,
            "endpoint": self.endpoint,
            "model": self.model,
            "prompts": "token ids" if self.target.takes_token_ids and not self.target.is_chat else "text",
            "dataset": self.dataset,
            "settings": dict(self.settings),
            "runs": [
                {
                    **asdict(each.summary),
                    "warnings": each.summary.warnings,
                    **({"requests": [_request(record) for record in each.run.records]} if with_requests else {}),
                }
                for each in self.runs
            ],
        }


def measured(run: LoadRun, slo: Slo | None) -> MeasuredRun:
    """Summarize a run."""
    return MeasuredRun(run, summarise(run, slo))


def _request(record: RequestRecord) -> dict[str, object]:
    """Return a request as JSON. Times are in seconds from the run's start; unknown values are null."""
    has_output = bool(record.token_times_s)
    return {
        "due_s": record.due_s,
        "sent_s": record.sent_s,
        "first_token_s": record.first_s if has_output else None,
        "last_token_s": record.last_s if has_output else None,
        "ended_s": record.ended_s,
        "ttft_s": record.ttft_s if has_output else None,
        "tpot_s": record.tpot_s if has_output else None,
        "e2e_s": record.e2e_s if has_output else None,
        "itls_s": np.diff(record.token_times_s).tolist(),
        "prompt_tokens": record.num_prompt_tokens,
        "cached_tokens": record.num_cached_tokens,
        "asked_tokens": record.num_asked_tokens,
        "output_tokens": record.num_output_tokens,
        "status": record.status,
        "failure": asdict(record.failure) if record.failure is not None else None,
        "path": asdict(record.path) if record.path is not None else None,
    }
