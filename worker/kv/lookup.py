"""The lookup of a prefix in the stores below a pool: how much of it they have, and which has each block."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.groups import BlockPlace, KVGroups, TransferOrder
from baton.kvtransfer.store.store import Key, StoreUnavailable
from baton.worker.kv.rank_stores import RankStores
from baton.worker.kv.stored_keys import block_key
from baton.worker.kv.tier import Tier

logger = logging.getLogger(__name__)

MAX_PASSES = 4  # over the stores, when each has other parts of a prompt
PROBES = 32  # prefixes whose state is looked up at once


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """A stored prefix of `num_blocks` blocks, and the tiers of all blocks that a hit on it needs."""

    num_blocks: int
    tiers: Mapping[BlockPlace, Tier]


NO_PREFIX = StoredPrefix(0, {})


class Lookup:
    """A lookup by a thread. `found` is at any time what it has found so far.

    The first KV group must be stored from the prefix's first block on. Of the other groups the blocks that the next
    token attends to are looked up, and of a recurrent state those after a stored checkpoint: without them, a shorter
    prefix is tried.
    """

    def __init__(
        self, stores: RankStores, tiers: Sequence[Tier], hashes: Sequence[BlockHash], groups: KVGroups
    ) -> None:
        """`tiers`: those of `stores` that are asked."""
        self.found = NO_PREFIX
        self.asked: Tier | None = None  # store whose response it waits for
        self.is_given_up = False  # the next store is not asked
        self._stores = stores
        self._tiers = tiers
        self._hashes = hashes
        self._groups = groups

    def run(self) -> None:
        """Look up the blocks; for a thread."""
        is_whole = not self._groups.has_windows and self._groups.states is None
        chain = self._locate(self._hashes, note=is_whole)
        if is_whole or not chain:
            return
        first = {BlockPlace(index, 0): tier for index, tier in enumerate(chain)}
        if self._groups.states is not None:
            self._find_state(first, len(chain))
        else:
            self._find_windows(first, len(chain))

    def _find_windows(self, first: Mapping[BlockPlace, Tier], length: int) -> None:
        """Find the longest prefix whose windows are stored. After repeated misses, prefixes are skipped."""
        num_misses = 0
        while length > 0 and not self.is_given_up:
            places = [place for place in self._order(length).places() if place.number]
            places.sort(key=lambda place: -place.index)
            tiers = self._locate([block_key(self._hashes[each.index], each.number) for each in places])
            if len(tiers) == len(places):
                self._set(length, {**first, **dict(zip(places, tiers, strict=True))})
                return
            missing = places[len(tiers)].index  # windows only advance: a longer prefix would need this block, too
            num_misses = num_misses + 1 if missing == length - 1 else 0
            length = missing - max(0, 2 ** (num_misses - 1) - 1)

    def _find_state(self, first: Mapping[BlockPlace, Tier], length: int) -> None:
        """Find the longest prefix with a stored checkpoint of the state."""
        num_groups = self._groups.num_groups
        for end in range(length, 0, -PROBES):
            ends = range(end, max(0, end - PROBES), -1)
            keys = [block_key(self._hashes[each - 1], num_groups) for each in ends]
            for length in [each for each, is_there in zip(ends, self._have(keys), strict=True) if is_there]:
                places = [place for place in self._order(length).places() if place.number >= num_groups]
                tiers = self._locate([block_key(self._hashes[length - 1], each.number) for each in places])
                if len(tiers) == len(places):
                    self._set(length, {**first, **dict(zip(places, tiers, strict=True))})
                    return

    def _order(self, length: int) -> TransferOrder:
        return self._groups.transfer_order(length * self._groups.block_size)

    def _set(self, length: int, tiers: Mapping[BlockPlace, Tier]) -> None:
        self.found = StoredPrefix(length, tiers)

    def _locate(self, keys: Sequence[Key], note: bool = False) -> list[Tier]:
        """Return the tier of each block, up to the first that none has. note: they are the prefix found so far."""
        found: list[Tier] = []
        names = self._stores.first_keys(keys)
        for _ in range(MAX_PASSES):
            before = len(found)
            for tier in self._tiers:
                if len(found) < len(names) and not self.is_given_up:
                    self.asked = tier
                    found += [tier] * self._ask(tier, names[len(found) :])
                    if note:
                        self._set(len(found), {BlockPlace(index, 0): each for index, each in enumerate(found)})
            if len(found) == before:
                break
        return found

    def _ask(self, tier: Tier, names: Sequence[Key]) -> int:
        try:
            return tier.store.count(names)
        except StoreUnavailable as error:
            self._note_failure(tier, error)
            return 0

    def _have(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each block whether some tier has it."""
        names, found = self._stores.first_keys(keys), [False] * len(keys)
        for tier in self._tiers:
            if self.is_given_up or all(found):
                break
            self.asked = tier
            try:
                found = [a or b for a, b in zip(found, tier.store.has(names), strict=True)]
            except StoreUnavailable as error:
                self._note_failure(tier, error)
        return found

    def _note_failure(self, tier: Tier, error: StoreUnavailable) -> None:
        tier.counters.failures += 1
        logger.debug("no lookup in the %s tier: %s", tier.store.name, error)
