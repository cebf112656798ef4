"""The cache is closed under prefixes, so that a lookup may bisect."""

import random

import pytest

from baton.engine.kv.block_hash import BlockHash, extend_hashes, hash_blocks, root_hash
from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.unit.engine.kv.held_prefixes import HeldPrefixes

BLOCK_SIZE = 4
NUM_BLOCKS = 24
MAX_RUNNING = 4  # more would hold all blocks, so that none could be evicted


class Rig:
    """Requests that compute, grow, end and are pinned in any order, as no scheduler would let them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE, enable_prefix_caching=True)
        self.running: list[Request] = []
        self.fills: list[Request] = []
        self.pins: list[int] = []
        self.prefixes = HeldPrefixes(self.blocks, random.Random(seed))
        self.parents: dict[BlockHash, BlockHash] = {}
        self.mirror: set[BlockHash] = set()
        self.num_removed = 0

    def start(self) -> None:
        """Start a request. Prompts over two tokens share prefixes, and are often computed at the same time."""
        tokens = [self.rng.randrange(2)] * BLOCK_SIZE + [self.rng.randrange(2) for _ in range(self.rng.randrange(24))]
        request = Request(RequestId(f"{self.rng.random()}"), tokens, len(tokens), SamplingParams(max_tokens=1))
        if not self.blocks.take(request, 0, reads_cache=self.rng.random() < 0.8):
            return
        self.note(request)
        self.running.append(request)
        if self.rng.random() < 0.2:
            self.blocks.fills.begin(request)
            self.fills.append(request)

    def compute(self) -> None:
        """Compute some of a request's tokens, and append one if all are computed."""
        request = self.rng.choice(self.running)
        self.blocks.advance(request, self.rng.randint(request.num_computed_tokens, request.num_tokens))
        if request.num_computed_tokens == request.num_tokens:
            request.token_ids.append(self.rng.randrange(2))
            self.note(request)
            if not self.blocks.grow(request):
                self.end(request)

    def end(self, request: Request) -> None:
        """End a request at any point of its life."""
        self.running.remove(request)
        self.blocks.free(request)

    def pin(self) -> None:
        """Pin a request's prefix, as a peer does that reads it, or hashes that begin within it."""
        hashes: list[BlockHash] = []
        extend_hashes(hashes, self.rng.choice(self.running).token_ids, BLOCK_SIZE, root_hash())
        self.pins.append(self.blocks.pin(hashes[self.rng.choice([0, 0, 1]) :]).pin_id)

    def note(self, request: Request) -> None:
        """Record the parent of each of the request's blocks."""
        hashes: list[BlockHash] = []
        extend_hashes(hashes, request.token_ids, BLOCK_SIZE, root_hash())
        self.parents |= dict(zip(hashes[1:], hashes[:-1], strict=True))

    def step(self) -> None:
        """Make one random change."""
        choice = self.rng.random()
        if not self.running or (choice < 0.3 and len(self.running) < MAX_RUNNING):
            self.start()
        elif choice < 0.7:
            self.compute()
        elif choice < 0.85:
            self.end(self.rng.choice(self.running))
        elif choice < 0.9 and self.fills:
            self.blocks.fills.end(self.fills.pop(self.rng.randrange(len(self.fills))).request_id)
        elif choice < 0.95 and not self.pins:
            self.pin()
        elif self.pins:
            self.blocks.pins.release(self.pins.pop(self.rng.randrange(len(self.pins))))
        self.prefixes.step(self.running)

    def check(self) -> None:
        """Assert that the cache, and a copy kept up to date by its changes, are closed under prefixes."""
        cached = set(self.blocks.cache.snapshot())
        assert all(self.parents[each] in cached for each in cached if each in self.parents)
        self.blocks.check_integrity(self.running)
        changes = self.blocks.cache.take_changes()
        self.mirror = (self.mirror - set(changes.removed)) | set(changes.stored)
        assert self.mirror == cached
        self.num_removed += len(changes.removed)


@pytest.mark.parametrize("seed", range(12))
def test_the_cache_stays_closed_under_prefixes(seed: int) -> None:
    rig = Rig(seed)
    for _ in range(1_500):
        rig.step()
        rig.check()
    assert rig.num_removed > 100


def computed(blocks: BlockManager, name: str, tokens: list[int], num_computed: int) -> Request:
    request = Request(RequestId(name), tokens, len(tokens), SamplingParams(max_tokens=1))
    assert blocks.take(request, 0, reads_cache=False)
    blocks.advance(request, num_computed)
    return request


def test_a_request_stores_its_own_blocks_when_those_of_another_are_evicted() -> None:
    blocks = BlockManager(8, BLOCK_SIZE, enable_prefix_caching=True)  # 7 of them usable
    first = computed(blocks, "first", [1] * 4, 4)
    second = computed(blocks, "second", [1] * 12, 8)
    assert len(blocks.cache.snapshot()) == 2
    blocks.free(first)
    third = computed(blocks, "third", [2] * 16, 0)
    assert blocks.cache.snapshot() == []  # the first block was taken, and the second could not be found without it
    blocks.advance(second, 12)
    assert len(blocks.cache.match(second.block_hashes)) == 3
    blocks.check_integrity([second, third])


def test_marked_blocks_are_evicted_after_others_that_were_used_as_recently() -> None:
    blocks = BlockManager(12, BLOCK_SIZE, enable_prefix_caching=True)  # 11 usable
    marked = Request(RequestId("marked"), [1] * 16, 16, SamplingParams(max_tokens=1), num_marked_tokens=10)
    assert blocks.take(marked, 0, reads_cache=True)
    blocks.advance(marked, 16)
    plain = computed(blocks, "plain", [2] * 16, 16)
    blocks.free(marked)  # used less recently
    blocks.free(plain)
    blocks.check_integrity([])

    def cached(token: int) -> int:
        return len(blocks.cache.match(hash_blocks([token] * 16, BLOCK_SIZE)))

    third = computed(blocks, "third", [3] * 28, 28)
    assert (cached(1), cached(2)) == (2, 2)
    blocks.free(third)
    blocks.free(computed(blocks, "fourth", [4] * 44, 0))
    assert (cached(1), cached(2)) == (0, 0)  # they are spared once
    blocks.check_integrity([])
