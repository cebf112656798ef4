"""Drafts of Medusa heads (Cai et al., "Medusa", ICML 2024): one path instead of a tree, verified as any draft is."""

import logging
import time
from collections.abc import Mapping, Sequence

import torch

from baton.engine.request import FinishRule, Request
from baton.engine.speculation.base import Drafted, Offer
from baton.engine.speculation.medusa.medusa_heads import MedusaHeads
from baton.engine.speculation.pass_times import PassTimes

log = logging.getLogger(__name__)


class MedusaDrafter:
    """Drafter that samples tokens of Medusa heads. A pass is one head, for all requests with drafts of its length."""

    def __init__(self, heads: MedusaHeads, finish_rule: FinishRule) -> None:
        """finish_rule: of the model for which they draft."""
        self._heads = heads
        self._finish_rule = finish_rule
        self._times = PassTimes()

    def begin_step(self) -> None:
        """Note a step."""
        self._times.begin_step()

    def offer(self, request: Request, limit: int) -> Offer | None:
        """Offer as many tokens as there are heads, once a step has computed a token of the request; see `Drafter`."""
        limit = min(limit, self._heads.num_heads, self._times.most_passes)
        return Offer(limit) if limit > 0 and not request.images and self._heads.can_draft(request) else None

    def pass_s(self, num_requests: int) -> float:
        """Return the time of a head; see `Drafter`."""
        return self._times.pass_s(num_requests)

    def draft(self, wanted: Mapping[Request, int], preparation_s: float) -> Drafted:
        """Draft tokens; all requests are ready. See `Drafter`."""
        began_s = time.monotonic()
        try:
            token_ids = self._draft(wanted)
        except torch.OutOfMemoryError as error:
            log.warning("drafting ran out of GPU memory, so this step has no drafts: %s", error)
            token_ids = {}
        return Drafted(token_ids, time.monotonic() - began_s)

    def _draft(self, wanted: Mapping[Request, int]) -> dict[Request, Sequence[int]]:
        """Draft these numbers of tokens, one head after another."""
        drafts: dict[Request, list[int]] = {request: [] for request in wanted}
        states = self._heads.states_of(list(wanted))  # [num_requests, hidden]
        rows = dict(enumerate(wanted))
        while rows:
            began_s, requests = time.monotonic(), list(rows.values())
            wanted_states = states if len(rows) == len(states) else states[list(rows)]
            token_ids = self._heads.sample(wanted_states, requests, [drafts[each] for each in requests])
            self._times.add(len(rows), time.monotonic() - began_s)
            for (row, request), token_id in zip(list(rows.items()), token_ids, strict=True):
                if self._finish_rule.is_end(request, token_id):
                    del rows[row]
                    continue
                drafts[request].append(token_id)
                if len(drafts[request]) == wanted[request]:
                    del rows[row]
        return dict(drafts)
