"""One layer's experts on one rank of a group."""

from collections.abc import Sequence

import torch

from baton.engine.experts.dispatch import ExpertRoutes, GroupExchange
from baton.engine.layers.expert_reader import ExpertReader
from baton.engine.layers.experts import Expert, Experts, PreparedExperts
from baton.engine.parallel.rank_group import RankGroup


class ExpertLayer:
    """Experts in this rank's slots of one layer, and the reader for further ones."""

    def __init__(self, group: RankGroup, reader: ExpertReader, num_experts: int, device: torch.device) -> None:
        self.num_experts = num_experts
        self.held: tuple[int, ...] = ()  # by slot
        self.experts = Experts([])
        self._here: dict[int, Expert] = {}  # the same experts; replaced as a whole, since other threads read it
        self.exchange = GroupExchange(group, num_experts, device)
        self._reader = reader
        self._device = device

    def read(self, wanted: Sequence[int]) -> list[Expert]:
        """Return the weights of the `wanted` experts; those held here are not read again. Safe on any thread."""
        here = self._here
        return [here[expert] if expert in here else self._reader.read(expert) for expert in wanted]

    def prepare(self, experts: Sequence[Expert]) -> PreparedExperts:
        """Lay out experts for this rank's slots, which may copy all of them. Safe on any thread."""
        return self.experts.prepare(experts)

    def place(self, slots: Sequence[Sequence[int]], rank: int, experts: PreparedExperts) -> None:
        """Switch to a new placement: `slots` has the experts by rank, `experts` the weights of this rank's slots."""
        self.held = tuple(slots[rank])
        self.experts.take(experts)
        self._here = dict(zip(self.held, experts.slots, strict=True))
        self.exchange.num_slots = len(self.held)
        self.exchange.row_tile = self.experts.row_tile
        self.exchange.routes = ExpertRoutes(self.num_experts, slots, self._device)
