"""Planned requests of a run: their bytes and due times."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from baton.loadtool.arrivals import Arrivals, MaxConcurrency, RequestRate
from baton.loadtool.datasets.base import Dataset
from baton.loadtool.errors import SettingError
from baton.loadtool.request import LoadRequest
from baton.loadtool.target import Target
from baton.loadtool.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request, ready to be sent."""

    payload: bytes
    num_prompt_tokens: int | None  # None: a text prompt
    num_output_tokens: int
    due_s: float | None = None  # from the run's start; None: when an earlier request has ended


@dataclass(frozen=True, slots=True)
class Limits:
    """Length of a run; the first limit reached ends it, or the end of the dataset."""

    num_requests: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class Planner:
    """Builder of requests from a dataset."""

    dataset: Dataset
    target: Target
    vocabulary: Vocabulary

    def plan(self, arrivals: Arrivals, limits: Limits, seed: int) -> Iterable[PlannedRequest]:
        """Return the requests of a run, built in advance unless a closed loop has no fixed number of requests.

        Raises SettingError for trace times without a trace, or for text prompts without a tokenizer.
        """
        if isinstance(arrivals, RequestRate) and arrivals.per_s == float("inf") and limits.num_requests is None:
            raise SettingError("--request-rate inf needs --num-prompts")
        planned = islice(self._timed(arrivals, seed), limits.num_requests)
        if isinstance(arrivals, MaxConcurrency):
            return planned if limits.num_requests is None else list(planned)
        end_s = float("inf") if limits.duration_s is None else limits.duration_s
        return list(takewhile(lambda request: request.due_s is not None and request.due_s < end_s, planned))

    def _timed(self, arrivals: Arrivals, seed: int) -> Iterator[PlannedRequest]:
        requests = self.dataset.requests(seed)
        if isinstance(arrivals, RequestRate):
            for request, due_s in zip(requests, arrivals.due_times(seed), strict=False):
                yield self._planned(request, due_s)
        elif isinstance(arrivals, MaxConcurrency):
            for request in requests:
                yield self._planned(request, None)
        else:
            for request in requests:
                if request.due_s is None:
                    raise SettingError(f"{self.dataset.name} has no times: give --request-rate or --max-concurrency")
                yield self._planned(request, request.due_s * arrivals.time_scale)

    def _planned(self, request: LoadRequest, due_s: float | None) -> PlannedRequest:
        payload = self.target.payload(self.target.body(request, self.vocabulary))
        num_prompt_tokens = None if isinstance(request.prompt, str) else len(request.prompt)
        return PlannedRequest(payload, num_prompt_tokens, request.num_output_tokens, due_s)
