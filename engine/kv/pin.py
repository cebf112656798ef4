"""A hold on a cached prefix that a peer reads."""

from dataclasses import dataclass

from baton.engine.request import BlockId


@dataclass(frozen=True, slots=True)
class Pin:
    """A hold on a cached prefix."""

    pin_id: int
    num_blocks: int  # length of the prefix
    blocks: list[BlockId]  # those that later tokens attend to, in transfer order
