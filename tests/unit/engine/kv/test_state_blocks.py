"""Blocks of recurrent state: a step reads the state of exactly the tokens before it, and a hit ends at a checkpoint."""

import random
from itertools import takewhile

import pytest

from baton.engine.delta_net import DeltaNetConfig
from baton.engine.kv.block_hash import BlockHash, hash_blocks
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.prefix_cache import CacheChanges
from baton.engine.kv.state_layout import StateLayout, StatePlace
from baton.engine.request import BlockId, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.unit.engine.kv.held_prefixes import HeldPrefixes

BLOCK_SIZE, CHECKPOINT_TOKENS, STATE_BLOCKS = 4, 8, 3
GROUPS = KVGroups(BLOCK_SIZE, states=StateLayout(STATE_BLOCKS, 10, 10, CHECKPOINT_TOKENS))


def make_request(tokens: list[int], **options: bool) -> Request:
    return Request(RequestId(f"{random.random()}"), tokens, len(tokens), SamplingParams(max_tokens=50), **options)


class Rig:
    """Requests that compute, receive, end and are pinned in any order; `contents` is what steps wrote to blocks."""

    def __init__(self, seed: int, enable_prefix_caching: bool = True) -> None:
        self.rng = random.Random(seed)
        self.blocks = BlockManager(60, BLOCK_SIZE, enable_prefix_caching, GROUPS)
        self.contents: dict[BlockId, object] = {}
        self.running: list[Request] = []
        self.receiving: list[Request] = []
        self.pins: list[int] = []
        self.prefixes = HeldPrefixes(self.blocks, random.Random(seed))
        self.num_hits = 0
        self.index: set[BlockHash] = set()  # what a router knows

    def start(self) -> None:
        stem = [self.rng.randrange(2)] * 12 if self.rng.random() < 0.7 else []
        tokens = stem + [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 24))]
        request = make_request(tokens, receives_kv=self.rng.random() < 0.3)
        if not self.blocks.take(request, 0, reads_cache=True):
            return
        self.num_hits += request.num_computed_tokens > 0
        assert request.num_computed_tokens % BLOCK_SIZE == 0
        if request.receives_kv:
            self.blocks.fills.begin(request)
        (self.receiving if request.receives_kv else self.running).append(request)

    def compute(self, request: Request) -> None:
        """Compute some of a request's tokens: read the state before them, write the one after them."""
        start = request.num_computed_tokens
        wanted = self.rng.randint(1, request.num_tokens - start)
        count = self.blocks.until_checkpoint(request, wanted)
        if not self.blocks.grow(request):
            self.end(request)
            return
        if start:
            assert self.read(request.current_state) == {
                (position, tuple(request.token_ids[:start])) for position in range(3)
            }
        self.write(request, start + count)
        self.blocks.advance(request, start + count)
        if request.num_computed_tokens == request.num_tokens:
            request.token_ids.append(self.rng.randrange(2))

    def read(self, blocks: list[BlockId]) -> set[object]:
        assert len(blocks) == STATE_BLOCKS
        return {self.contents[block] for block in blocks}

    def write(self, request: Request, end: int) -> None:
        for block in request.block_table:
            self.contents[block] = "KV"
        for position, block in enumerate(request.state_blocks):
            self.contents[block] = (position, tuple(request.token_ids[:end]))

    def end_receive(self, request: Request) -> None:
        """End a receive with all of the prompt's blocks and its state, or with nothing new."""
        self.receiving.remove(request)
        self.blocks.fills.end(request.request_id)
        self.running.append(request)
        if self.rng.random() < 0.6:
            end = request.num_tokens
            order = GROUPS.transfer_order(end)
            brought = order.blocks([request.block_table], state=request.state_blocks)
            assert len(brought) == order.num_blocks
            self.write(request, end)
            self.blocks.receive(request, end)
            request.token_ids.append(self.rng.randrange(2))

    def end(self, request: Request) -> None:
        self.running.remove(request)
        self.blocks.free(request)

    def pin(self) -> None:
        tokens = self.rng.choice(self.running).token_ids
        pin = self.blocks.pin(hash_blocks(tokens, BLOCK_SIZE))
        end = pin.num_blocks * BLOCK_SIZE
        assert len(pin.blocks) == GROUPS.transfer_order(end).num_blocks
        if end:
            assert self.read(pin.blocks[pin.num_blocks :]) == {(position, tuple(tokens[:end])) for position in range(3)}
        self.pins.append(pin.pin_id)

    def step(self) -> None:
        choice = self.rng.random()
        if len(self.running) < 2 or (choice < 0.2 and len(self.running) < 5):
            self.start()
        elif choice < 0.75:
            self.compute(self.rng.choice(self.running))
        elif choice < 0.85 and self.receiving:
            self.end_receive(self.rng.choice(self.receiving))
        elif choice < 0.9:
            self.end(self.rng.choice(self.running))
        elif choice < 0.95 and len(self.pins) < 2:
            self.pin()
        elif self.pins:
            self.blocks.pins.release(self.pins.pop())
        if len(self.receiving) > 2:
            self.end_receive(self.receiving[0])
        self.prefixes.step(self.running)
        self.blocks.check_integrity([*self.running, *self.receiving])
        self.check_index()

    def check_index(self) -> None:
        """Assert that a router expects the hits that there are."""
        changes = self.blocks.cache.take_changes()
        self.index = (self.index - set(changes.removed)) | set(changes.stored)
        assert self.index == set(self.blocks.cache.snapshot())
        for request in self.running:
            hashes = hash_blocks(request.token_ids, BLOCK_SIZE)
            known = list(takewhile(self.index.__contains__, hashes))
            assert len(known) >= len(self.blocks.cache.match(hashes))


@pytest.mark.parametrize("seed", range(4))
def test_every_step_reads_the_state_of_the_tokens_before_it(seed: int) -> None:
    rig = Rig(seed)
    for _ in range(1_200):
        rig.step()
    assert rig.num_hits > 10
    assert rig.prefixes.num_held > 3
    for request in list(rig.receiving):
        rig.end_receive(request)
    for request in list(rig.running):
        rig.end(request)
    rig.prefixes.end()
    for pin in rig.pins:
        rig.blocks.pins.release(pin)
    assert rig.blocks.num_free == rig.blocks.num_usable


def computed(blocks: BlockManager, tokens: list[int]) -> Request:
    request = make_request(tokens)
    assert blocks.take(request, 0, reads_cache=True)
    while request.num_computed_tokens < len(tokens):
        count = blocks.until_checkpoint(request, len(tokens) - request.num_computed_tokens)
        blocks.advance(request, request.num_computed_tokens + count)
    return request


def test_a_hit_ends_at_a_checkpoint_that_is_not_copied() -> None:
    blocks = BlockManager(100, BLOCK_SIZE, True, GROUPS)
    tokens = list(range(30))
    first = computed(blocks, tokens)
    again = make_request([*tokens, 30])
    assert blocks.take(again, 0, reads_cache=True)
    assert again.num_computed_tokens == 24
    assert again.block_table[:6] == first.block_table[:6]
    assert not set(again.checkpoint_blocks) & {*again.state_blocks, *first.state_blocks}
    blocks.advance(again, 28)
    assert again.current_state == again.state_blocks


@pytest.mark.parametrize(("num_more", "num_cached"), [(6, 8), (5, 0)])
def test_a_checkpoint_is_left_out_if_few_blocks_are_free(num_more: int, num_cached: int) -> None:
    blocks = BlockManager(1 + STATE_BLOCKS + 2 + num_more, BLOCK_SIZE, True, GROUPS)  # a state and the KV of 8 tokens
    request = computed(blocks, list(range(8)))
    assert (request.current_state == request.state_blocks) == (num_cached == 0)
    blocks.free(request)
    assert blocks.num_cached_tokens(make_request(list(range(12)))) == num_cached


def test_only_hashes_up_to_a_checkpoint_are_reported() -> None:
    blocks = BlockManager(100, BLOCK_SIZE, True, GROUPS)
    tokens = list(range(30))
    request = make_request(tokens, receives_kv=True)
    assert blocks.take(request, 0, reads_cache=True)
    blocks.receive(request, 18)  # a handover brings no checkpoint
    assert blocks.cache.take_changes() == CacheChanges()
    assert blocks.until_checkpoint(request, 12) == 2
    blocks.advance(request, 20)
    assert set(blocks.cache.take_changes().stored) == set(request.block_hashes[:5])
    assert blocks.until_checkpoint(request, 10) == 4
    blocks.advance(request, 22)
    assert blocks.cache.take_changes() == CacheChanges()
    blocks.free(request)
    blocks.cache.allocate(blocks.cache.pool.num_free)
    assert set(blocks.cache.take_changes().removed) == set(request.block_hashes[:5])
    blocks.cache.check_integrity()


def test_a_pulled_state_is_a_checkpoint_wherever_it_ends() -> None:
    blocks = BlockManager(100, BLOCK_SIZE, True, GROUPS)
    request = make_request(list(range(30)), receives_kv=True)
    assert blocks.take(request, 0, reads_cache=True)
    blocks.receive(request, 20)
    assert blocks.num_cached_tokens(make_request(list(range(30)))) == 20
    assert blocks.until_checkpoint(request, 10) == 4


def test_a_checkpoint_is_evicted_as_a_whole() -> None:
    blocks = BlockManager(100, BLOCK_SIZE, True, GROUPS)
    request = computed(blocks, list(range(9)))
    checkpoint = blocks.cache.checkpoints.at(request.block_hashes[1])
    assert blocks.num_cached_tokens(make_request(list(range(12)))) == 8
    blocks.free(computed(blocks, list(range(100, 130))))  # used later
    while not set(first := blocks.cache.allocate(1)) & set(checkpoint):
        pass
    assert {*first, *blocks.cache.allocate(2)} == set(checkpoint)  # the rest is useless, so it goes next
    assert blocks.num_cached_tokens(make_request(list(range(12)))) == 0
    blocks.cache.check_integrity()


def test_without_the_state_at_its_end_a_transfer_is_useless() -> None:
    order = GROUPS.transfer_order(30)
    assert order.num_blocks == 8 + STATE_BLOCKS
    assert order.num_usable(8, num_known=2) == 2
    assert order.num_usable(8 + STATE_BLOCKS, num_known=2) == 8
    assert GROUPS.transfer_order(0).num_blocks == 0


def test_states_are_divided_into_whole_blocks() -> None:
    net = DeltaNetConfig(layers=(0, 2, 3), num_key_heads=1, num_value_heads=2, key_dim=4, value_dim=4, conv_size=3)
    size = 2 * 16 + 2 * 16  # the inputs of two tokens, and two matrices
    large = StateLayout.of(net, shard_bytes=4 * 30, checkpoint_tokens=8)
    assert (large.layer_size, large.num_blocks) == (size, 9)
    assert large.place(1) == StatePlace(slice(3, 6), slice(0, 30))
    small = StateLayout.of(net, shard_bytes=4 * 130, checkpoint_tokens=8)
    assert small.num_blocks == 2
    assert small.place(1) == StatePlace(slice(0, 1), slice(size, 2 * size))
    assert small.place(2) == StatePlace(slice(1, 2), slice(0, size))
