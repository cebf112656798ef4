"""Sampler that stores a request's logits, and appends given tokens instead of sampled ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.grammar.masks import StepMasks
from baton.engine.request import Request
from baton.engine.sampling.sampler import Sampler
from baton.engine.speculation.drafted_rows import NO_DRAFTS, Drafted


@dataclass(frozen=True, slots=True)
class ForcedSampler(Sampler):
    """Teacher forcing of an engine whose steps are not launched ahead."""

    tokens: Mapping[str, Sequence[int]] | None = None  # the output of each request, by its id; None: greedy outputs
    logits: dict[str, list[Tensor]] = field(default_factory=dict)  # by request and output token: [vocab] on the CPU

    def draw(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        num_unknown: int = 0,
        masks: StepMasks | None = None,
        drafted: Drafted = NO_DRAFTS,
    ) -> Tensor:
        """Return the next token of each request, [num_rows] int64 on the logits' device."""
        assert not num_unknown, "the host must know a request's tokens"
        assert not drafted, "drafts are not forced"
        for request, row in zip(requests, logits.cpu(), strict=True):
            self.logits.setdefault(request.request_id, []).append(row.clone())
        if self.tokens is None:
            return Sampler.draw(self, logits, requests, num_unknown, masks)
        chosen = [self.tokens[each.request_id][each.num_tokens - each.num_prompt_tokens] for each in requests]
        return torch.tensor(chosen, dtype=torch.int64, device=logits.device)
