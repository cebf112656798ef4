"""Holds on cached blocks that a peer reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from baton.engine.kv.prefix_cache import PrefixCache
from baton.engine.request import BlockId


@dataclass(frozen=True, slots=True)
class Pin:
    """A hold on a cached prefix."""

    pin_id: int
    num_blocks: int  # length of the prefix
    blocks: list[BlockId]  # those that later tokens attend to, in transfer order


class Pins:
    """The pins of a prefix cache."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._blocks: dict[int, list[BlockId]] = {}
        self._num_pins = 0

    def __iter__(self) -> Iterator[BlockId]:
        """Iterate over the blocks of all pins, each as often as it is held."""
        return chain.from_iterable(self._blocks.values())

    def hold(self, blocks: list[BlockId], num_blocks: int) -> Pin:
        """Hold blocks that the cache has."""
        self._cache.pool.hold(blocks)
        self._num_pins += 1
        self._blocks[self._num_pins] = blocks
        return Pin(self._num_pins, num_blocks, blocks)

    def release(self, pin_id: int) -> None:
        """Release the blocks of a pin."""
        self._cache.release(self._blocks.pop(pin_id))
