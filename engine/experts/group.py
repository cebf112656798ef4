"""The experts of a model, spread over the ranks of a group that may grow and shrink.

1. A rank loads all but the experts, and joins. Each epoch of the group begins with every rank telling which experts it
   has; at the first, nobody has any.
2. If nobody has some expert, all ranks share out those that are missing, and read them before they go on: at the start
   that is all experts; when a rank died, its own, except those of which others have a replica.
3. If some rank has more to compute than it should, or none, a better placement is worked out and read on another
   thread, while steps go on, and each layer of it is taken over by all ranks between the same two steps (see
   `expert_rebalance`). While some rank has too few, nobody reads but such ranks, whatever the loads.
4. If a rank fails to read its part of that, all go on as they are, and try again after some steps if some rank has too
   few experts.
"""

import logging
import threading
import time
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from baton.engine.errors import EngineError, GroupBroken
from baton.engine.experts.balance import imbalance
from baton.engine.experts.layer import ExpertLayer
from baton.engine.experts.nixl_dispatch import NixlLink
from baton.engine.experts.placement import hand_over, is_even, share_missing
from baton.engine.experts.rebalance import FAILED, Loads, Place, Rebalance, Slots, better_slots
from baton.engine.layers.expert_reader import ExpertReader
from baton.engine.outputs import ExpertFigures
from baton.engine.parallel.group_view import Membership
from baton.engine.parallel.rank_group import RankGroup

logger = logging.getLogger(__name__)

NOTHING = -1  # in what ranks tell each other: no expert in this slot
RETRY_STEPS = 100  # after a rank failed to read, and twice as many each time that it fails again
MAX_DOUBLINGS = 7
LAST_BUFFERS_S = 15.0  # for those of the last epoch to be given back: longer than a kernel waits for a lost rank


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    """How the load of experts is balanced."""

    is_enabled: bool = False
    num_redundant: int = 0  # slots of a layer beyond one for each expert, over all ranks
    step_interval: int = 3000  # steps of the group from one placement to the next
    num_nodes: int = 1  # that the ranks are on, equally many on each, one node's after the other's


class ExpertGroup:
    """Owns the group of ranks and the experts of every layer; one thread calls everything."""

    def __init__(
        self,
        membership: Membership,
        host: str,
        device: torch.device,
        balance: BalanceSettings | None = None,
        nixl_hidden: int | None = None,
        fewest_ranks: int = 1,
    ) -> None:
        """host: the address of this rank's interface; nixl_hidden: width of tokens that go by `nixl_ep`, if they do;
        fewest_ranks: with fewer nothing is computed, since these might not have the memory for all experts.
        """
        self._nixl_hidden = nixl_hidden
        self._link: NixlLink | None = None
        self.membership = membership
        self.ranks = RankGroup(membership, host, device, fewest_ranks)
        self.layers: list[ExpertLayer] = []
        self._device = device
        self._balance = balance or BalanceSettings()
        self._num_expert_groups = 1  # of the model, from which a token chooses its experts
        self._slots: list[Slots] = []  # by layer: where all ranks' experts stand
        self._rebalance: Rebalance | None = None
        self._reading = threading.Lock()  # held by the thread that reads experts for a rebalance
        self._num_taken = 0  # layers of it
        self._counted = torch.zeros(0, 0, dtype=torch.int64)  # tokens that earlier rebalances knew of
        self.imbalances: list[float] = []  # by layer, when the last rebalance began: the busiest rank over the mean
        self._num_steps = 0  # since the epoch began, or the last rebalance
        self._num_failures = 0  # to read, one after the other

    def add_layer(self, reader: ExpertReader, num_experts: int) -> ExpertLayer:
        """A layer whose experts the group will give out."""
        self._num_expert_groups = reader.num_groups
        self.layers.append(ExpertLayer(self.ranks, reader, num_experts, self._device))
        return self.layers[-1]

    def form(self) -> None:
        """Joins the newest epoch, or one after it; every expert stands somewhere then. Raises EngineEnded."""
        self._cancel_rebalance()
        self.ranks.is_forming = True
        try:
            while not self._has_formed():
                pass
        finally:
            self.ranks.is_forming = False

    def _has_formed(self) -> bool:
        """Tries once."""
        try:
            self.ranks.form()
            self._place()
            self._connect_directly()
        except GroupBroken as error:
            self.give_up(error)
            return False
        return True

    def give_up(self, error: GroupBroken) -> None:
        """The present epoch is over: the others notice that we are gone, and form the next one with us."""
        if self.ranks.is_formed:
            logger.warning("epoch %d of the group is over: %s", self.ranks.view.epoch, error)
            self.membership.report_broken(self.ranks.view.epoch, str(error))
            self.leave_epoch()

    def close(self) -> None:
        """Ends the process group, and reads nothing more."""
        self._cancel_rebalance()
        self.leave_epoch()
        self.ranks.close()

    def leave_epoch(self) -> None:
        """Leaves the process group."""
        link, self._link = self._link, None
        for layer in self.layers:
            layer.exchange.link = None
        # Only then are buffers given back: that waits for all kernels, and those of a lost rank end with the group.
        self.ranks.drop(link.close if link is not None else None)

    def _place(self) -> None:
        """Has every expert stand somewhere. Raises GroupBroken, and EngineError if our part cannot be read."""
        started_s, rank = time.monotonic(), self.ranks.view.rank
        self._slots = [
            share_missing(held, layer.num_experts) for layer, held in zip(self.layers, self._held(), strict=True)
        ]
        num_missing = sum(
            len(slots[rank]) - len(layer.held) for layer, slots in zip(self.layers, self._slots, strict=True)
        )
        for layer, slots in zip(self.layers, self._slots, strict=True):
            try:
                layer.place(slots, rank, layer.prepare(layer.read(slots[rank])))
            except Exception as error:  # of any kind: no memory, no file
                raise EngineError(
                    f"rank {rank} of {self.ranks.size} cannot read its share of the experts that no rank has, "
                    f"{num_missing} in all layers: {error}. The ranks together need the memory for all experts, and "
                    "the checkpoint's files"
                ) from error
        if num_missing:
            logger.info("%d experts read in %.1f s", num_missing, time.monotonic() - started_s)
        self._num_steps = self._num_failures = 0
        if not self._is_even:
            self._begin_rebalance()

    def _connect_directly(self) -> None:
        """Has steps of few tokens go by `nixl_ep`, if they are to. Raises GroupBroken."""
        if self._nixl_hidden is None or self.ranks.size == 1:
            return
        self.ranks.wait_for_dropped(LAST_BUFFERS_S)
        most = max(layer.num_experts for layer in self.layers) + self._balance.num_redundant
        slots_per_rank = -(-most // self.ranks.size)
        if self._is_even:  # else all layers soon are, and until then take the other way
            slots_per_rank = max(slots_per_rank, *(len(held) for slots in self._slots for held in slots))
        self._link = NixlLink.connect(self.ranks, self._device, self._nixl_hidden, slots_per_rank)
        for layer in self.layers:
            layer.exchange.link = self._link

    def step(self, num_tokens: int) -> bool:
        """Agrees with all ranks on a step; False if nobody has a token to compute. Raises GroupBroken."""
        num_ready = self._rebalance.num_ready if self._rebalance is not None else 0
        agreed = self.ranks.gather([num_tokens, num_ready])
        self.ranks.num_tokens = [tokens for tokens, _ in agreed]
        self._take(min(ready for _, ready in agreed))
        if not any(self.ranks.num_tokens):
            return False
        self._num_steps += 1
        if self._rebalance is None and self._is_due:  # on all ranks: they ended the last one between the same steps
            self._begin_rebalance()
        return True

    @property
    def _is_even(self) -> bool:
        return all(map(is_even, self._slots))

    @property
    def _is_due(self) -> bool:
        """Whether experts should be placed anew; the same on all ranks."""
        if self._num_failures and not self._is_even:
            return self._num_steps >= RETRY_STEPS << min(self._num_failures - 1, MAX_DOUBLINGS)
        return self._balance.is_enabled and self._num_steps >= self._balance.step_interval

    def figures(self) -> ExpertFigures:
        """How the experts fare, for metrics."""
        epoch, num_ranks = (self.ranks.view.epoch, self.ranks.size) if self.ranks.is_formed else (0, 0)
        chosen = self.tokens_by_expert()
        shares = chosen.amax(dim=1) / chosen.sum(dim=1).clamp(min=1)
        return ExpertFigures(epoch, num_ranks, self.rows_by_layer(), shares.tolist(), self.imbalances)

    def rows_by_layer(self) -> list[int]:
        """Of all ranks' tokens, those that were computed by experts here since the start, once for each expert."""
        return [layer.exchange.num_rows for layer in self.layers]

    def tokens_by_expert(self) -> Tensor:
        """This rank's tokens since its start by layer and chosen expert: [num_layers, num_experts] on the CPU."""
        return torch.stack([layer.exchange.counts for layer in self.layers]).cpu()

    def _begin_rebalance(self) -> None:
        """All ranks do this between the same two steps."""
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
        """The rule by which experts are placed anew."""
        if not self._is_even:  # with the fewest reads, whatever the loads: by these nearly all would move
            return _handed_over
        return partial(
            better_slots,
            num_redundant=self._balance.num_redundant,
            num_groups=self._num_expert_groups,
            num_nodes=self._balance.num_nodes,
        )

    def _take(self, num_ready: int) -> None:
        """Takes over the layer that every rank has prepared, if there is one; num_ready: the fewest of all ranks."""
        if self._rebalance is None:
            return
        if num_ready == FAILED:
            self._num_failures += 1
            self._num_steps = 0
            self._cancel_rebalance()
        elif num_ready > self._num_taken:
            slots = self._slots[self._num_taken] = self._rebalance.prepared.slots
            self.layers[self._num_taken].place(slots, self.ranks.view.rank, self._rebalance.prepared.experts)
            self._num_taken += 1
            self._rebalance.taken()
            if self._num_taken == len(self.layers):
                self._rebalance, self._num_taken, self._num_failures = None, 0, 0

    def _cancel_rebalance(self) -> None:
        if self._rebalance is not None:
            self._rebalance.cancel()
        self._rebalance, self._num_taken = None, 0

    def _held(self) -> list[Slots]:
        """What every rank has in its slots, by layer and rank. Raises GroupBroken."""
        num_held = max((len(layer.held) for layer in self.layers), default=0)
        most = max(num for (num,) in self.ranks.gather([num_held]))
        told = torch.full((len(self.layers), most), NOTHING, dtype=torch.int64)
        for row, layer in zip(told, self.layers, strict=True):
            row[: len(layer.held)] = torch.tensor(layer.held, dtype=torch.int64)
        gathered = self.ranks.gather_tensor(told).view(self.ranks.size, len(self.layers), most)
        by_layer = gathered.transpose(0, 1).tolist()
        return [[[expert for expert in slots if expert != NOTHING] for slots in ranks] for ranks in by_layer]


def _handed_over(slots: Slots, _: Loads) -> Slots:
    return hand_over(slots)
