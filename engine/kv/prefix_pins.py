"""Pinned prefixes: cached blocks that are held for a time, so that no other prompt evicts them.

A pin only holds what the prefix cache has. It never stops a request: if the pins alone leave one too few blocks,
they are dropped, the oldest first.
"""

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from baton.engine.errors import QueueFull
from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.groups import held
from baton.engine.kv.prefix_cache import PrefixCache
from baton.engine.request import BlockId

logger = logging.getLogger(__name__)

MAX_PINS = 1024  # of a worker; as many deleted ones are remembered
REST_S = 30.0  # after a pin was dropped for lack of blocks, until the worker takes new ones


class NoRoomForPin(QueueFull):
    """A pin does not fit its quota now; the message says how many blocks are free."""


@dataclass(frozen=True, slots=True)
class PinKey:
    """Identity of a pin: names of different owners never collide."""

    owner: str
    name: str


@dataclass(frozen=True, slots=True)
class PinShare:
    """Largest shares of the pool's blocks that pins may hold, 0 to 1."""

    worker: float = 0.25  # all pins together
    owner: float = 1.0  # those of one owner


@dataclass(frozen=True, slots=True)
class PrefixPin:
    """A pinned prefix."""

    key: PinKey
    num_tokens: int
    blocks: Sequence[BlockId]  # of all KV groups
    expires_s: float  # on the clock of the pins


@dataclass(frozen=True, slots=True)
class PinFigures:
    """Number of pins and of the blocks that they hold, and of pins dropped for lack of blocks since the start."""

    num_pins: int = 0
    num_blocks: int = 0
    num_dropped: int = 0


class PrefixPins:
    """The pinned prefixes of a prefix cache, oldest first. A block of several pins counts once."""

    def __init__(self, cache: PrefixCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._clock = clock
        self._pins: dict[PinKey, PrefixPin] = {}
        self._deleted: dict[PinKey, float] = {}  # time of the deletion on the callers' clock; the latest ones
        self._rests_until_s = -math.inf
        self._num_dropped = 0
        self._holds: Counter[BlockId] = Counter()  # number of pins of each held block
        self._own_holds: defaultdict[str, Counter[BlockId]] = defaultdict(Counter)  # the same by owner

    def __iter__(self) -> Iterator[BlockId]:
        """Iterate over the blocks of all pins, each as often as it is held."""
        return chain.from_iterable(pin.blocks for pin in self._pins.values())

    @property
    def figures(self) -> PinFigures:
        """Current numbers."""
        return PinFigures(len(self._pins), len(self._holds), self._num_dropped)

    def of(self, owner: str) -> list[PrefixPin]:
        """Return an owner's pins."""
        self.expire()
        return [pin for pin in self._pins.values() if pin.key.owner == owner]

    def is_deleted(self, key: PinKey, created_s: float) -> bool:
        """Return whether a pin that was asked for at this time, on the callers' clock, was deleted since."""
        return self._deleted.get(key, -math.inf) >= created_s

    def remaining_s(self, pin: PrefixPin) -> float:
        """Return the seconds until a pin expires."""
        return pin.expires_s - self._clock()

    def hold(
        self, key: PinKey, hashes: Sequence[BlockHash], ttl_s: float, share: PinShare, min_blocks: int = 1
    ) -> PrefixPin | None:
        """Hold the longest cached prefix of `hashes` for `ttl_s`; a pin of the same key is replaced.

        Returns None and changes nothing if fewer than `min_blocks` of them are cached. Raises NoRoomForPin.
        """
        self.expire()
        blocks, num_hashes = self._cached(hashes)
        if num_hashes < max(1, min_blocks):
            return None
        former = self._pins.get(key)
        num_tokens = num_hashes * self._cache.groups.block_size
        pin = PrefixPin(key, num_tokens, tuple(blocks), self._clock() + ttl_s)
        if former is None or set(former.blocks) != set(blocks):
            self._check_room(pin, share)
        self._cache.pool.hold(blocks)
        if former is not None:
            self._release(former)
        self._pins[key] = pin
        self._holds.update(blocks)
        self._own_holds[key.owner].update(blocks)
        return pin

    def delete(self, key: PinKey, deleted_s: float = 0.0) -> bool:
        """Release a pin; False if there is none. `deleted_s`: see `is_deleted`; 0: it may be made again."""
        if deleted_s:
            self._deleted.pop(key, None)
            self._deleted[key] = deleted_s
        while len(self._deleted) > MAX_PINS:
            del self._deleted[next(iter(self._deleted))]
        pin = self._pins.get(key)
        if pin is None:
            return False
        self._release(pin)
        return True

    def expire(self) -> float | None:
        """Release the pins whose time has passed; return the seconds until the next one expires, if there is one."""
        now_s = self._clock()
        for pin in [pin for pin in self._pins.values() if pin.expires_s <= now_s]:
            self._release(pin)
        return min((pin.expires_s - now_s for pin in self._pins.values()), default=None)

    def make_way(self, num_new: int, own: Collection[BlockId]) -> bool:
        """Drop a pin if the pins alone, without other requests, leave a request too few blocks.

        num_new: blocks that the request lacks; own: those that it has, or shares with the cache. Returns whether one
        was dropped: otherwise other requests only have to end. This is called in each step in which a request waits.
        """
        num_pinned = len(self._holds)
        if not num_pinned or num_new + num_pinned + len(own) <= self._num_usable:  # nearly always
            return False
        if num_new + num_pinned + sum(block not in self._holds for block in set(own)) <= self._num_usable:
            return False
        return self.drop_oldest(frozenset(own))

    def drop_oldest(self, own: frozenset[BlockId] = frozenset()) -> bool:
        """Release the oldest pin with a block that no other one has, and that the request lacks; False: there is none.

        If pins have all these in common, it is the oldest with such a block.
        """
        helping = [pin for pin in self._pins.values() if not own.issuperset(pin.blocks)]
        alone = (pin for pin in helping if any(self._holds[each] == 1 and each not in own for each in pin.blocks))
        pin = next(alone, helping[0] if helping else None)
        if pin is None:
            return False
        self._release(pin)
        self._num_dropped += 1
        self._rests_until_s = self._clock() + REST_S
        logger.warning(
            "a pin of %d tokens (%d KV blocks) is dropped: a request needs the blocks", pin.num_tokens, len(pin.blocks)
        )
        return True

    @property
    def _num_usable(self) -> int:
        return self._cache.pool.num_blocks - 1  # one block pads block tables

    def _cached(self, hashes: Sequence[BlockHash]) -> tuple[list[BlockId], int]:
        """Return the blocks that a hit on the longest cached prefix needs, and its number of hashes.

        With windows these include the first group's blocks behind the window: an eviction of one would evict the rest.
        """
        cache = self._cache
        first, *others = cache.match_groups(hashes)
        num_hashes = len(first)
        blocks = [cache.block_of(block_hash) for block_hash in hashes[:num_hashes]]
        blocks += [block for table in others for block in held(table)]
        if num_hashes and cache.groups.states is not None:
            blocks += cache.checkpoints.at(hashes[num_hashes - 1])
        return blocks, num_hashes

    def _check_room(self, pin: PrefixPin, share: PinShare) -> None:
        """Raise NoRoomForPin unless the pin fits in place of any former one with its key."""
        if (rest_s := self._rests_until_s - self._clock()) > 0:
            text = f"requests needed the KV blocks of pins; the worker takes new pins in {rest_s:.0f} s"
            raise NoRoomForPin(text)
        former = self._pins.get(pin.key)
        num_own = sum(key.owner == pin.key.owner for key in self._pins)
        for what, fraction, num_pins, most, holds in (
            ("all pins", share.worker, len(self._pins), MAX_PINS, self._holds),
            (
                "pins of one key",
                share.owner,
                num_own,
                max(1, int(share.owner * MAX_PINS)),
                self._own_holds[pin.key.owner],
            ),
        ):
            if num_pins - (former is not None) >= most:
                raise NoRoomForPin(f"the worker has {num_pins} of at most {most} {what}; delete some")
            limit = int(min(fraction, share.worker) * self._num_usable)
            freed = {block for block in former.blocks if holds[block] == 1} if former is not None else set()
            num_free = max(0, limit - len(holds) + len(freed))
            num_new = sum(block not in holds or block in freed for block in set(pin.blocks))
            if num_new > num_free:
                raise NoRoomForPin(
                    f"the prefix takes {num_new} more KV blocks, but only {num_free} of the {limit} for {what} on the "
                    "worker are free; delete pins, pin a shorter prefix or raise max_pinned_fraction"
                )

    def _release(self, pin: PrefixPin) -> None:
        del self._pins[pin.key]
        self._cache.release(pin.blocks)
        own = self._own_holds[pin.key.owner]
        for holds in (self._holds, own):
            for block in pin.blocks:
                holds[block] -= 1
                if not holds[block]:
                    del holds[block]
        if not own:
            del self._own_holds[pin.key.owner]
