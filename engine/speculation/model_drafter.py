"""Drafts of a small model with the same vocabulary (Leviathan et al., "Fast inference from transformers via speculative
decoding", ICML 2023), or of a head that reads the model's hidden states (Li et al., "EAGLE", ICML 2024).

Its tokens are sampled as those of the request are, with the same noise, which depends on the seed and the position
alone: so a draft model with the same probabilities would always be right, at any temperature.

1. The draft model has separate KV. It computes what it lacks of a request, chunk by chunk, between the steps.
2. Once it lacks only a few tokens, it can draft: a pass for each place in the drafts, with the requests in a batch.
3. After the step, a draft model's KV of drafted tokens that were right stays.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from baton.engine.request import FinishRule, Request
from baton.engine.speculation.base import Drafted, Offer
from baton.engine.speculation.pass_times import PassTimes
from baton.engine.speculation.twins import Twin, Twins

log = logging.getLogger(__name__)

READY_TOKENS = 16  # tokens without KV that the first pass of a draft may compute
LEAST_CHUNK = 32  # tokens of a chunk, unless fewer are missing


class TwinModel(Protocol):
    """A draft model or head, which computes twins of requests."""

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request for which it drafts."""
        ...

    @property
    def step_tokens(self) -> int:
        """Most tokens of prompts that it computes before a step."""
        ...

    def twins(self) -> Twins:
        """Return the owner of its blocks."""
        ...

    def sample(self, twins: Sequence[Twin]) -> Sequence[int]:
        """Compute all tokens of twins that lack KV, and return a token that may follow those of each."""
        ...

    def compute(self, chunks: Mapping[Twin, int]) -> None:
        """Compute the KV of these numbers of tokens of twins, none of which is the last."""
        ...


class ModelDrafter:
    """Drafter that samples tokens of a draft model or head."""

    def __init__(self, model: TwinModel, finish_rule: FinishRule, vocab_size: int) -> None:
        """finish_rule, vocab_size: those of the model for which it drafts."""
        self._model = model
        self._finish_rule = finish_rule
        self._vocab_size = vocab_size
        self._times = PassTimes()
        self.twins = model.twins()

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
        if twin is None or not twin.is_readable:
            return None
        is_ready = twin.num_missing <= READY_TOKENS
        return Offer(limit, None, is_ready, 0.0 if is_ready else twin.num_missing * self._times.prompt_token_s)

    def pass_s(self, num_requests: int) -> float:
        """Return the time of a pass; see `Drafter`."""
        return self._times.pass_s(num_requests)

    def draft(self, wanted: Mapping[Request, int], preparation_s: float) -> Drafted:
        """Draft tokens, and compute some of what the draft model lacks; see `Drafter`."""
        twins = {twin: count for request, count in wanted.items() if (twin := self.twins.of(request)) is not None}
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
            token_ids = self._model.sample(open_twins)
            self._times.add(len(open_twins), time.monotonic() - began_s)
            sampled, open_twins = zip(open_twins, token_ids, strict=True), []
            for twin, token_id in sampled:
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
        self._model.compute(chunks)
        self._times.add_chunk(sum(chunks.values()), time.monotonic() - began_s)
        for twin, count in chunks.items():
            self.twins.advance(twin, twin.num_with_kv + count)
