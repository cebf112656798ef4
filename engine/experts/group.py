"""Expert-parallel group: a model's experts, spread over ranks that may join and leave.

1. A rank loads everything except the experts and joins. At the start of each epoch, all ranks exchange which experts
   they hold; in the first epoch, none.
2. If an expert is missing on all ranks, the ranks divide the missing ones and read them before they continue: at
   startup all experts; after a rank died, its experts, except those with a replica elsewhere.
3. If the load is uneven, or a rank has too few experts, a better placement is computed and read on another thread while
   steps continue. All ranks switch to each new layer between the same two steps (see `rebalance`). While some rank has
   too few experts, only such ranks read, whatever the loads.
4. If a rank fails to read its experts, all ranks keep the current placement, and retry after some steps if a rank has
   too few experts.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from baton.engine.errors import EngineEnded, EngineError, GroupBroken
from baton.engine.experts.balance import imbalance
from baton.engine.experts.layer import ExpertLayer
from baton.engine.experts.nixl_dispatch import NixlLink
from baton.engine.experts.placement import even_out, is_even, share_missing
from baton.engine.experts.rebalance import FAILED, Loads, Place, Rebalance, Slots, better_slots
from baton.engine.layers.expert_reader import ExpertReader
from baton.engine.outputs import ExpertFigures, ExpertShare
from baton.engine.parallel.group_view import Membership
from baton.engine.parallel.rank_group import RankGroup

logger = logging.getLogger(__name__)

EMPTY_SLOT = -1  # padding in the gathered placement
RETRY_STEPS = 100  # steps to wait after a rank failed to read; doubles with each further failure
MAX_DOUBLINGS = 7
LAST_BUFFERS_S = 15.0  # wait for the last epoch's buffers to be freed: longer than a kernel waits for a lost rank


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    """Settings of the expert load balancer."""

    is_enabled: bool = False
    num_redundant: int = 0  # redundant expert slots per layer, over all ranks
    step_interval: int = 3000  # group steps between rebalances
    num_nodes: int = 1  # nodes of the ranks: equally many consecutive ranks on each


class ExpertGroup:
    """Group of ranks and the experts of every layer. Not thread-safe: all calls must come from one thread."""

    def __init__(
        self,
        membership: Membership,
        host: str,
        device: torch.device,
        balance: BalanceSettings | None = None,
        nixl_hidden: int | None = None,
        fewest_ranks: int = 1,
        rules: str = "",
        name: str = "",
    ) -> None:
        """Create the group without forming it.

        host: address of this rank's interface; nixl_hidden: hidden size if `nixl_ep` is used, otherwise None;
        fewest_ranks: with fewer ranks nothing is computed, since they might lack the memory for all experts;
        rules: settings that all ranks must share, as a part of the fingerprint with which this rank joins;
        name: of the group, for reports.
        """
        self._rules = rules
        self._name = name
        self._nixl_hidden = nixl_hidden
        self._link: NixlLink | None = None
        self.membership = membership
        self.ranks = RankGroup(membership, host, device, fewest_ranks)
        self.layers: list[ExpertLayer] = []
        self._device = device
        self._balance = balance or BalanceSettings()
        self._num_expert_groups = 1  # of the model's group-limited routing
        self._slots: list[Slots] = []  # by layer: the placement over all ranks
        self._rebalance: Rebalance | None = None
        self._reading = threading.Lock()  # held by the thread that reads experts for a rebalance
        self._num_applied = 0  # layers of the current rebalance that were applied
        self._counted = torch.zeros(0, 0, dtype=torch.int64)  # token counts used by earlier rebalances
        self.imbalances: list[float] = []  # by layer, at the last rebalance: the busiest rank over the mean
        self._num_steps = 0  # since the epoch began, or the last rebalance
        self._num_failures = 0  # consecutive failures to read experts

    def add_layer(self, reader: ExpertReader, num_experts: int) -> ExpertLayer:
        """Add a layer whose experts the group places on its ranks."""
        self._num_expert_groups = reader.num_groups
        self.layers.append(ExpertLayer(self.ranks, reader, num_experts, self._device))
        return self.layers[-1]

    def join(self, fingerprint: str) -> None:
        """Announce that this rank has loaded everything but the experts. fingerprint: of what it has loaded."""
        self.membership.join(f"{fingerprint}/{self._rules}")

    def form(self) -> None:
        """Join the newest epoch, retrying with later ones, until every expert has a slot. Raises EngineEnded."""
        self._cancel_rebalance()
        self.ranks.is_forming = True
        try:
            while not self._has_formed():
                pass
        finally:
            self.ranks.resumed_s = time.monotonic()
            self.ranks.is_forming = False

    def _has_formed(self) -> bool:
        """Try to form one epoch; returns whether that succeeded."""
        try:
            self.ranks.form()
            self._place()
            self._connect_directly()
        except GroupBroken as error:
            self.abandon_epoch(error)
            return False
        return True

    def abandon_epoch(self, error: GroupBroken) -> None:
        """Abandon the current epoch: the other ranks' collectives fail, and they form the next epoch with this rank."""
        if self.ranks.is_formed:
            logger.warning("epoch %d of the group has ended: %s", self.ranks.view.epoch, error)
            self.membership.report_broken(self.ranks.view.epoch, str(error))
            self.leave_epoch()

    def close(self) -> None:
        """End the process group and stop reading experts."""
        self._cancel_rebalance()
        self.leave_epoch()
        self.ranks.close()

    def leave_epoch(self) -> None:
        """Leave the process group of the current epoch."""
        link, self._link = self._link, None
        for layer in self.layers:
            layer.exchange.link = None
        # Free the buffers last: that waits for all kernels, and kernels that wait for a lost rank end with the group.
        self.ranks.drop(link.close if link is not None else None)

    def _place(self) -> None:
        """Give every expert a slot.

        Raises GroupBroken, EngineEnded if this rank has left, or EngineError if it cannot read its share.
        """
        started_s, rank = time.monotonic(), self.ranks.view.rank
        self._slots = [
            share_missing(held, layer.num_experts) for layer, held in zip(self.layers, self._held(), strict=True)
        ]
        num_missing = sum(
            len(slots[rank]) - len(layer.held) for layer, slots in zip(self.layers, self._slots, strict=True)
        )
        for layer, slots in zip(self.layers, self._slots, strict=True):
            if self.ranks.has_left:
                raise EngineEnded("this rank has left its group")
            try:
                layer.place(slots, rank, layer.prepare(layer.read(slots[rank])))
            except Exception as error:  # out of memory, a missing file, or anything else
                raise EngineError(
                    f"rank {rank} of {self.ranks.size} cannot read its share of the experts that no rank has, "
                    f"{num_missing} in all layers: {error}. The ranks together need enough memory for all experts, "
                    "and each needs the checkpoint's files"
                ) from error
        if num_missing:
            logger.info("read %d experts in %.1f s", num_missing, time.monotonic() - started_s)
        self._num_steps = self._num_failures = 0
        if not self._is_even:
            self._begin_rebalance()

    def _connect_directly(self) -> None:
        """Connect `nixl_ep` for steps of few tokens, if it is enabled. Raises GroupBroken."""
        if self._nixl_hidden is None or self.ranks.size == 1:
            return
        self.ranks.wait_for_dropped(LAST_BUFFERS_S)
        most = max(layer.num_experts for layer in self.layers) + self._balance.num_redundant
        slots_per_rank = -(-most // self.ranks.size)
        if self._is_even:  # otherwise all layers soon will be, and use the all-to-all until then
            slots_per_rank = max(slots_per_rank, *(len(held) for slots in self._slots for held in slots))
        self._link = NixlLink.connect(self.ranks, self._device, self._nixl_hidden, slots_per_rank)
        for layer in self.layers:
            layer.exchange.link = self._link

    def step(self, num_tokens: int, on_delay: Callable[[], None] | None = None) -> bool:
        """Agree on a step with all ranks; False if no rank has tokens to compute. Raises GroupBroken.

        on_delay: called once if the other ranks have not agreed after 0.2 s.
        """
        num_ready = self._rebalance.num_ready if self._rebalance is not None else 0
        agreed = self.ranks.gather([num_tokens, num_ready], on_delay)
        self.ranks.num_tokens = [tokens for tokens, _ in agreed]
        self._apply_prepared(min(ready for _, ready in agreed))
        if not any(self.ranks.num_tokens):
            return False
        self._num_steps += 1
        if self._rebalance is None and self._is_due:  # the same on all ranks: they also end rebalances together
            self._begin_rebalance()
        return True

    @property
    def _is_even(self) -> bool:
        return all(map(is_even, self._slots))

    @property
    def _is_due(self) -> bool:
        """Whether a rebalance is due; the same on all ranks."""
        if self._num_failures and not self._is_even:
            return self._num_steps >= RETRY_STEPS << min(self._num_failures - 1, MAX_DOUBLINGS)
        return self._balance.is_enabled and self._num_steps >= self._balance.step_interval

    def figures(self) -> ExpertFigures:
        """Return the experts' statistics for metrics."""
        epoch, num_ranks = (self.ranks.view.epoch, self.ranks.size) if self.ranks.is_formed else (0, 0)
        chosen = self.tokens_by_expert()
        shares = chosen.amax(dim=1) / chosen.sum(dim=1).clamp(min=1)
        return ExpertFigures(epoch, num_ranks, self.rows_by_layer(), shares.tolist(), self.imbalances)

    def share(self) -> ExpertShare | None:
        """Return this rank's share of the experts; None without a formed group. Waits for no device."""
        if not self.ranks.is_formed or not self._slots:
            return None
        view, imbalances = self.ranks.view, self.imbalances
        layer = imbalances.index(max(imbalances)) if imbalances else 0
        return ExpertShare(
            rank=view.rank,
            num_ranks=self.ranks.size,
            epoch=view.epoch,
            layer=layer,
            experts=tuple(self._slots[layer][view.rank]),
            imbalance=imbalances[layer] if imbalances else 0.0,
            num_rows=sum(self.rows_by_layer()),
            group=self._name,
        )

    def rows_by_layer(self) -> list[int]:
        """Return by layer how many rows of all ranks' tokens this rank's experts have computed since start."""
        return [layer.exchange.num_rows for layer in self.layers]

    def tokens_by_expert(self) -> Tensor:
        """Return this rank's routed tokens since start, [num_layers, num_experts] on the CPU."""
        return torch.stack([layer.exchange.counts for layer in self.layers]).cpu()

    def _begin_rebalance(self) -> None:
        """Start a rebalance; all ranks do this between the same two steps."""
        self._cancel_rebalance()
        counts = self.tokens_by_expert()
        here = counts - self._counted if self._counted.shape == counts.shape else counts
        loads = self.ranks.gather_tensor(here).sum(dim=0).view(counts.shape).numpy()
        self._counted, self._num_steps = counts, 0
        self.imbalances = [imbalance(slots, row) for slots, row in zip(self._slots, loads, strict=True)]
        rank = self.ranks.view.rank
        self._rebalance = Rebalance(self.layers, self._slots, loads, rank, self._next_place, self._reading)

    @property
    def _next_place(self) -> Place:
        """Placement policy of the next rebalance."""
        if not self._is_even:  # with the fewest reads: balancing by load would move nearly all experts
            return _evened_out
        return partial(
            better_slots,
            num_redundant=self._balance.num_redundant,
            num_groups=self._num_expert_groups,
            num_nodes=self._balance.num_nodes,
        )

    def _apply_prepared(self, num_ready: int) -> None:
        """Apply the next layer if every rank has prepared it; `num_ready` is the minimum over all ranks."""
        if self._rebalance is None:
            return
        if num_ready == FAILED:
            self._num_failures += 1
            self._num_steps = 0
            self._cancel_rebalance()
        elif num_ready > self._num_applied:
            slots = self._slots[self._num_applied] = self._rebalance.prepared.slots
            self.layers[self._num_applied].place(slots, self.ranks.view.rank, self._rebalance.prepared.experts)
            self._num_applied += 1
            self._rebalance.mark_applied()
            if self._num_applied == len(self.layers):
                self._rebalance, self._num_applied, self._num_failures = None, 0, 0

    def _cancel_rebalance(self) -> None:
        if self._rebalance is not None:
            self._rebalance.cancel()
        self._rebalance, self._num_applied = None, 0

    def _held(self) -> list[Slots]:
        """Gather the experts that every rank holds, by layer and rank. Raises GroupBroken."""
        num_held = max((len(layer.held) for layer in self.layers), default=0)
        most = max(num for (num,) in self.ranks.gather([num_held]))
        held = torch.full((len(self.layers), most), EMPTY_SLOT, dtype=torch.int64)
        for row, layer in zip(held, self.layers, strict=True):
            row[: len(layer.held)] = torch.tensor(layer.held, dtype=torch.int64)
        gathered = self.ranks.gather_tensor(held).view(self.ranks.size, len(self.layers), most)
        by_layer = gathered.transpose(0, 1).tolist()
        return [[[expert for expert in slots if expert != EMPTY_SLOT] for slots in ranks] for ranks in by_layer]


def _evened_out(slots: Slots, _: Loads) -> Slots:
    return even_out(slots)
