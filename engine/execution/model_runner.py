"""Model runner: builds a step's batch, computes logits, samples, pools."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.execution.batch_builder import BatchBuilder
from baton.engine.execution.device import to_device_async
from baton.engine.execution.in_flight_step import HostCopy, LaunchedStep
from baton.engine.grammar.masks import GrammarMasks
from baton.engine.kv.groups import KVGroups
from baton.engine.models import Model
from baton.engine.outputs import PositionLogprobs
from baton.engine.pooling.pooler import Pooler, sums_on_host
from baton.engine.sampling.sampler import Sampler
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from baton.engine.speculation.drafted_rows import num_accepted, sampled_requests
from baton.engine.vision.step_images import StepImages


@dataclass(slots=True)
class LogitsRows:
    """Rows of a step's logits and what they are used for."""

    token_indices: list[int] = field(default_factory=list)  # index in the batch of each row's token
    sampled_rows: list[int] = field(default_factory=list)  # one row per request that samples, and for each draft
    prompt_rows: dict[int, range] = field(default_factory=dict)  # rows for prompt logprobs, by index in the schedule


class ModelRunner:
    """Model, the KV pool and the sampler, run one step at a time."""

    def __init__(
        self,
        model: Model,
        pool: Tensor,
        block_size: int,
        sampler: Sampler,
        grammars: GrammarMasks | None = None,
        pooler: Pooler | None = None,
        groups: KVGroups | None = None,
        images: StepImages | None = None,
    ) -> None:
        """grammars: masks of the requests' grammars, pooler: of pooled requests, images: of prompts; None if no request
        has one.

        groups: default is one, which attends to the whole context.
        """
        self.model = model
        self.pool = pool
        self.block_size = block_size
        self.sampler = sampler
        self.grammars = grammars
        self.pooler = pooler
        self.groups = groups or KVGroups(block_size)
        self._builder = BatchBuilder(block_size, self.groups)
        self.images = images

    def run(self, scheduled: Sequence[ScheduledRequest]) -> list[StepResult]:
        """Compute the scheduled tokens' KV and sample for requests that have caught up; results in the same order."""
        return self.collect(self.launch(scheduled))

    @torch.inference_mode()
    def launch(self, scheduled: Sequence[ScheduledRequest], previous: LaunchedStep | None = None) -> LaunchedStep:
        """Launch a step without waiting for its results; `previous`, if given, samples its input tokens."""
        rows = self._logits_rows(scheduled)
        batch = self._builder.build(scheduled, rows.token_indices)
        if self.images is not None:
            step = self.images.of(scheduled, batch.positions)
            batch = replace(batch, rotary_positions=step.positions, images=step.images, image_vectors=step.vectors)
        if previous is not None:
            batch = replace(batch, sampled_ids=_sampled_inputs(previous.token_ids, scheduled))
        sampling, drafted = sampled_requests(scheduled)
        if self.grammars is not None:
            self.grammars.begin(sampling, drafted)
        ranges = self.pooler.ranges(scheduled) if self.pooler is not None else {}
        logits, sums = self._forward(replace(batch, pooled=tuple(ranges.values())) if ranges else batch)
        sampled = self._select(logits, rows.sampled_rows)
        masks = self.grammars.collect(sampling, drafted) if self.grammars is not None else None
        token_ids = self.sampler.draw(sampled, sampling, previous is not None, masks, drafted)
        return LaunchedStep(
            scheduled,
            token_ids,
            HostCopy(token_ids),
            self.sampler.logprobs(sampled, token_ids, sampling),
            [self._prompt_logprobs(logits, item, rows.prompt_rows.get(place)) for place, item in enumerate(scheduled)],
            masks.late_rows if masks is not None else frozenset(),
            masks.forced if masks is not None else {},
            list(ranges),
            sums,
        )

    def collect(self, launched: LaunchedStep) -> list[StepResult]:
        """Wait for a launched step, advance recurrent states and return the results in the order of its requests."""
        results = self.results(launched)
        self.accept(launched.scheduled, results)
        return results

    def accept(self, scheduled: Sequence[ScheduledRequest], results: Sequence[StepResult]) -> None:
        """Advance recurrent states by the drafts that were right; late masks leave them as they were."""
        if self.groups.states is None:
            return
        drafted = [(item, result) for item, result in zip(scheduled, results, strict=True) if item.drafts]
        if drafted:
            self.model.accept(
                [item.num_known_tokens + len(result.further) if result.sampled else 0 for item, result in drafted]
            )

    def results(self, launched: LaunchedStep) -> list[StepResult]:
        """Wait for a launched step and return its results in the order of its requests; `accept` must follow."""
        described = self.sampler.described(launched.copy.wait(), launched.logprobs)
        embeddings = self._embeddings(launched)
        results, row = [], 0
        for place, (item, prompt_logprobs) in enumerate(zip(launched.scheduled, launched.prompt_logprobs, strict=True)):
            if item.samples and row not in launched.late_rows:
                last = row + num_accepted(item.drafts, described, row, launched.late_rows)
                forced = launched.forced.get(last, ())
                further = described[row + 1 : last + 1]
                results.append(StepResult(described[row], forced, prompt_logprobs, further=further))
            else:
                results.append(StepResult(prompt_logprobs=prompt_logprobs, embedding=embeddings.get(place)))
            row += item.samples + len(item.drafts)
        return results

    def run_idle(self) -> None:
        """Take part in a step of the group that has no tokens on this rank: compute only the experts."""
        self.model.forward_idle()

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Compute a step. Returns the logits, and the sums of pooled requests, if there are any."""
        if not batch.pooled:
            return self.model.forward(batch, self.pool), None
        output = self.model.forward_pooled(batch, self.pool)
        return output.logits, output.sums

    def _embeddings(self, launched: LaunchedStep) -> dict[int, bytes]:
        """Return the embeddings that a step completes, by place of the request."""
        if self.pooler is None:
            return {}
        sums = {} if launched.sums is None else sums_on_host(launched.pooled_places, launched.sums)
        return self.pooler.collect(launched.scheduled, sums)

    def _logits_rows(self, scheduled: Sequence[ScheduledRequest]) -> LogitsRows:
        rows = LogitsRows()
        end = 0
        for place, item in enumerate(scheduled):
            start, end = end, end + item.num_new_tokens
            request = item.request
            if request.sampling.prompt_logprobs is not None:
                first = max(item.start, request.num_prompt_logprobs)
                last = min(item.start + item.num_new_tokens, request.num_prompt_tokens - 1)
                if first < last:
                    offset = start - item.start
                    rows.prompt_rows[place] = range(len(rows.token_indices), len(rows.token_indices) + last - first)
                    rows.token_indices += range(first + offset, last + offset)
            if item.samples:
                count = 1 + len(item.drafts)
                rows.sampled_rows += range(len(rows.token_indices), len(rows.token_indices) + count)
                rows.token_indices += range(end - count, end)
        return rows

    def _select(self, logits: Tensor, rows: list[int]) -> Tensor:
        if len(rows) == logits.shape[0]:
            return logits
        return logits[to_device_async(torch.tensor(rows, dtype=torch.int64), logits.device)]  # `rows` may be empty

    def _prompt_logprobs(self, logits: Tensor, item: ScheduledRequest, rows: range | None) -> list[PositionLogprobs]:
        num_top = item.request.sampling.prompt_logprobs
        if rows is None or num_top is None:
            return []
        first = max(item.start, item.request.num_prompt_logprobs)
        targets = item.request.token_ids[first + 1 : first + 1 + len(rows)]
        return self.sampler.prompt_logprobs(logits[rows.start : rows.stop], targets, num_top)


def _sampled_inputs(token_ids: Tensor, scheduled: Sequence[ScheduledRequest]) -> Tensor:
    """Return each request's token out of the previous step's `token_ids`, on the same device."""
    rows = [item.source for item in scheduled]
    if rows == list(range(len(token_ids))):
        return token_ids
    return token_ids[to_device_async(torch.tensor(rows), token_ids.device)]
