"""Pinned prefixes among the random operations of a property test."""

import random
from collections.abc import Sequence
from contextlib import suppress

from baton.engine.kv.block_hash import hash_blocks
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.prefix_pins import NoRoomForPin, PinKey, PinShare
from baton.engine.request import Request


class HeldPrefixes:
    """Pins that come and go; what they hold must be found at any time."""

    def __init__(self, blocks: BlockManager, rng: random.Random) -> None:
        self.num_held = 0
        self._blocks = blocks
        self._rng = rng
        self._tokens: dict[PinKey, list[int]] = {}

    def step(self, running: Sequence[Request]) -> None:
        """Now and then pin a running request's prefix, delete a pin, drop one or clear the cache; then check."""
        pins, choice = self._blocks.prefix_pins, self._rng.random()
        key = PinKey("", f"{self._rng.randrange(3)}")
        if choice < 0.04 and running:
            tokens = list(self._rng.choice(running).token_ids)
            with suppress(NoRoomForPin):
                pin = pins.hold(key, hash_blocks(tokens, self._blocks.block_size), 1e6, PinShare(worker=0.4))
                if pin is not None:
                    self._tokens[key] = tokens[: pin.num_tokens]
                    self.num_held += 1
        elif choice < 0.06:
            pins.delete(key)
        elif choice < 0.065:
            pins._rests_until_s = 0.0 if pins.drop_oldest() else pins._rests_until_s
        elif choice < 0.067:
            self._blocks.cache.clear()
        self._check()

    def end(self) -> None:
        """Delete all pins."""
        for key in self._tokens:
            self._blocks.prefix_pins.delete(key)

    def _check(self) -> None:
        for pin in self._blocks.prefix_pins.of(""):
            hashes = hash_blocks(self._tokens[pin.key], self._blocks.block_size)
            assert len(self._blocks.cache.match(hashes)) == len(hashes) > 0
