"""Drafts of a small model with the same vocabulary (Leviathan et al., "Fast inference from transformers via speculative
decoding", ICML 2023).

Its tokens are sampled as those of the request are, with the same noise, which depends on the seed and the position
alone: so a draft model with the same probabilities would always be right, at any temperature.

1. The draft model has separate KV. It computes what it lacks of a request, chunk by chunk, between the steps.
2. Once it lacks only a few tokens, it can draft: a pass for each place in the drafts, with the requests in a batch.
3. After the step, the KV of drafted tokens that were right stays.
"""

import logging
import time
from collections.abc import Mapping, Sequence

import torch

from baton.engine.request import FinishRule, Request
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.speculation.base import Drafted, Offer
from baton.engine.speculation.draft_model import DraftModel
from baton.engine.speculation.pass_times import PassTimes
from baton.engine.speculation.twins import Twin, Twins

log = logging.getLogger(__name__)

READY_TOKENS = 16  # tokens without KV that the first pass of a draft may compute
LEAST_CHUNK = 32  # tokens of a chunk, unless fewer are missing


class ModelDrafter:
    """Drafter that samples tokens of a draft model."""

    def __init__(self, model: DraftModel, finish_rule: FinishRule, vocab_size: int) -> None:
        """finish_rule, vocab_size: those of the model for which it drafts."""
        self._model = model
        self._finish_rule = finish_rule
        self._vocab_size = vocab_size
        self._times = PassTimes()
        self.twins = Twins(model.blocks, model.vocab_size)

    def begin_step(self) -> None:
        """Free what belongs to requests that have ended."""
        self.twins.drop_ended()
        self._times.begin_step()

    def offer(self, request: Request, limit: int) -> Offer | None:
        """Offer tokens of a request that fits into the draft model's context and has no images; see `Drafter`."""
        limit = min(limit, self._model.max_model_len - request.num_tokens, self._times.most_passes)
        if limit <= 0 or request.images:
            return None
        twin = self.twins.of(request)
        if not twin.is_readable:
            return None
        is_ready = twin.num_missing <= READY_TOKENS
        return Offer(limit, None, is_ready, 0.0 if is_ready else twin.num_missing * self._times.prompt_token_s)

    def pass_s(self, num_requests: int) -> float:
        """Return the time of a pass; see `Drafter`."""
        return self._times.pass_s(num_requests)

    def draft(self, wanted: Mapping[Request, int], preparation_s: float) -> Drafted:
        """Draft tokens, and compute some of what the draft model lacks; see `Drafter`."""
        twins = {self.twins.of(request): count for request, count in wanted.items()}
        late = [twin for twin in twins if twin.num_missing > READY_TOKENS]
        ready = {twin: count for twin, count in twins.items() if twin not in late and self._is_held(twin, count)}
        began_s = time.monotonic()
        try:
            token_ids = self._draft(ready)
            drafted_s = time.monotonic()
            self._compute(late, preparation_s)
        except torch.OutOfMemoryError as error:
            log.warning("drafting ran out of GPU memory, so this step has no drafts: %s", error)
            return Drafted({}, time.monotonic() - began_s)
        return Drafted(token_ids, drafted_s - began_s, time.monotonic() - drafted_s)

    def check_integrity(self) -> None:
        """Assert that every block of the draft model is accounted for."""
        self.twins.check_integrity()

    def _is_held(self, twin: Twin, num_drafts: int) -> bool:
        """Return whether a twin has blocks for drafting, and has them with the KV that it was expected to have."""
        return self.twins.hold(twin, num_drafts) and twin.num_missing <= READY_TOKENS

    def _draft(self, twins: Mapping[Twin, int]) -> dict[Request, Sequence[int]]:
        """Draft these numbers of tokens, a pass for each place."""
        drafts: dict[Request, list[int]] = {twin.request: [] for twin in twins}
        open_twins = list(twins)
        while open_twins:
            began_s = time.monotonic()
            works = {twin.own: twin for twin in open_twins}
            items = sorted((twin.next_pass() for twin in open_twins), key=_is_long)
            results = self._model.runner.run(items)
            self._times.add(len(items), time.monotonic() - began_s)
            open_twins = []
            for item, result in zip(items, results, strict=True):
                twin = works[item.request]
                assert result.sampled is not None, "a pass samples a token of each request"
                token_id = result.sampled.token_id
                if token_id >= self._vocab_size or self._finish_rule.is_end(twin.request, token_id):
                    continue
                twin.take_sampled(token_id)
                drafts[twin.request].append(token_id)
                if len(drafts[twin.request]) < twins[twin]:
                    open_twins.append(twin)
        return dict(drafts)

    def _compute(self, twins: Sequence[Twin], most_s: float) -> None:
        """Compute KV that is missing, in chunks that take about `most_s` in all at most."""
        num_left, token_s = self._model.step_tokens, self._times.prompt_token_s
        if token_s:
            num_left = min(num_left, int(most_s / token_s))
        chunks: dict[Twin, int] = {}
        for twin in twins:
            if num_left < min(twin.num_missing, LEAST_CHUNK) or not self.twins.hold(twin, 0):
                break
            if (count := min(twin.num_missing, num_left)) > 0:
                chunks[twin] = count
                num_left -= count
        if not chunks:
            return
        began_s = time.monotonic()
        self._model.runner.run(sorted((each.next_chunk(count) for each, count in chunks.items()), key=_is_long))
        self._times.add_chunk(sum(chunks.values()), time.monotonic() - began_s)
        for twin, count in chunks.items():
            self.twins.advance(twin, twin.num_with_kv + count)


def _is_long(item: ScheduledRequest) -> bool:
    """Return whether a request computes more than one token: those come last in a step."""
    return item.num_new_tokens > 1
