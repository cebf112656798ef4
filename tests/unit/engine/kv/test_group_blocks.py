"""Blocks of several KV groups: a request holds what its next token attends to, and a hit finds the right content."""

import random

import pytest

from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.kv.block_hash import BlockHash, hash_blocks
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.groups import KVGroups, held
from baton.engine.request import NULL_BLOCK, BlockId, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.unit.engine.kv.held_prefixes import HeldPrefixes

BLOCK_SIZE = 4
STEP_TOKENS = 8
WINDOW, CHUNK = AttentionSpan(10), AttentionSpan(12, is_chunked=True)
KINDS = {
    "window": (FULL, WINDOW),
    "chunks": (FULL, CHUNK, CHUNK),
    "both": (FULL, FULL, AttentionSpan(20), WINDOW),
    "only": (WINDOW,),
}


def groups_of(kind: str) -> KVGroups:
    spans = KINDS[kind]
    return KVGroups(BLOCK_SIZE, spans, tuple((layer,) for layer in range(len(spans))))


def make_request(tokens: list[int], **options: bool) -> Request:
    return Request(RequestId(f"{random.random()}"), tokens, len(tokens), SamplingParams(max_tokens=50), **options)


class Rig:
    """Requests that compute, grow, receive, end and are pinned in any order; `contents` is what their layers wrote."""

    def __init__(self, kind: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.groups = groups_of(kind)
        num_blocks = 1 + 40 * self.groups.num_groups
        self.blocks = BlockManager(num_blocks, BLOCK_SIZE, True, self.groups, STEP_TOKENS)
        self.contents: dict[BlockId, tuple[BlockHash, int]] = {}
        self.running: list[Request] = []
        self.receiving: list[Request] = []
        self.pins: list[int] = []
        self.prefixes = HeldPrefixes(self.blocks, random.Random(seed))
        self.num_hits = 0

    def start(self) -> None:
        """Start a request. Prompts over two tokens share prefixes; some are received."""
        stem = [self.rng.randrange(2)] * 8 if self.rng.random() < 0.7 else []
        tokens = stem + [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 40))]
        receives, pulls = self.rng.random() < 0.3, self.rng.random() < 0.5
        request = make_request(
            tokens,
            receives_kv=receives,
            receives_whole=receives and not pulls,
            keep_blocks=(pulls or not receives) and self.rng.random() < 0.2,
        )
        if not self.blocks.take(request, self.rng.randrange(3), reads_cache=self.rng.random() < 0.9):
            return
        self.num_hits += request.num_computed_tokens > 0
        if receives:
            self.blocks.fills.begin(request)
            self.receiving.append(request)
        else:
            self.running.append(request)

    def end_receive(self, request: Request) -> None:
        """End a receive with all of the KV, some of its full blocks if they were pulled, or none."""
        self.receiving.remove(request)
        self.blocks.fills.end(request.request_id)
        self.running.append(request)
        if self.rng.random() < 0.6:
            first, end = request.num_computed_tokens // BLOCK_SIZE, request.num_tokens
            if not request.receives_whole:
                end = self.rng.randint(first, (end - 1) // BLOCK_SIZE) * BLOCK_SIZE
            order = self.groups.transfer_order(end)
            assert NULL_BLOCK not in order.blocks(request.block_tables, first)
            self.fill(request, first, end)
            self.blocks.receive(request, end)
            assert request.num_computed_tokens == end
            if request.receives_whole:
                request.token_ids.append(self.rng.randrange(2))
        if request.receives_whole:
            self.blocks.drop_gaps(request)

    def fill(self, request: Request, start: int, num_tokens: int) -> None:
        """Note the content of the blocks from number `start` on that a transfer brings."""
        hashes = hash_blocks(request.token_ids[:num_tokens], BLOCK_SIZE)
        for group, (table, first) in enumerate(
            zip(request.block_tables, self.groups.first_blocks(num_tokens), strict=True)
        ):
            for block in held(table[start:]):
                self.contents.pop(block, None)
            for index in range(max(start, first), len(hashes)):
                self.contents[table[index]] = (hashes[index], group)

    def compute(self, request: Request) -> None:
        """Compute some of a request's tokens, and append one if all are computed."""
        start = request.num_computed_tokens
        if request.num_tokens - start == 1:
            count = int(self.blocks.grow(request))
        else:
            count = self.blocks.cover(request, self.rng.randint(1, min(STEP_TOKENS, request.num_tokens - start)))
            assert (count <= 0) == self.blocks.is_short(request)
        if count <= 0:
            self.end(request)  # as a scheduler preempts it
            return
        self.write(request, start, start + count)
        self.blocks.advance(request, start + count)
        if request.num_computed_tokens == request.num_tokens:
            request.token_ids.append(self.rng.randrange(2))

    def write(self, request: Request, start: int, end: int) -> None:
        """Note the content of the blocks that tokens fill, and assert that they read the right ones."""
        hashes = hash_blocks(request.token_ids, BLOCK_SIZE)
        for group, (table, first) in enumerate(zip(request.block_tables, self.groups.first_blocks(start), strict=True)):
            read = [self.contents.get(block) for block in table[first : start // BLOCK_SIZE]]
            assert read == [(each, group) for each in hashes[first : start // BLOCK_SIZE]]
            for index in range(start // BLOCK_SIZE, -(-end // BLOCK_SIZE)):
                if index < end // BLOCK_SIZE:
                    self.contents[table[index]] = (hashes[index], group)
                else:
                    self.contents.pop(table[index], None)

    def end(self, request: Request) -> None:
        """End a request at any point of its life."""
        self.running.remove(request)
        self.blocks.free(request)

    def pin(self) -> None:
        """Pin a prefix and assert that the reader gets the blocks that it needs."""
        hashes = hash_blocks([*self.rng.choice(self.running).token_ids], BLOCK_SIZE)
        pin = self.blocks.pin(hashes)
        order = self.groups.transfer_order(pin.num_blocks * BLOCK_SIZE)
        expected = [
            (hashes[index], group)
            for index in range(order.end)
            for group, first in enumerate(order.first_blocks)
            if index >= first
        ]
        assert [self.contents[block] for block in pin.blocks] == expected
        self.pins.append(pin.pin_id)

    def step(self) -> None:
        """Make one random change."""
        choice = self.rng.random()
        if len(self.running) < 2 or (choice < 0.2 and len(self.running) < 6):
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
        if len(self.receiving) > 3:
            self.end_receive(self.receiving[0])
        self.prefixes.step(self.running)

    def check(self) -> None:
        """Assert that nothing leaks, and that requests hold no block behind a window."""
        self.blocks.check_integrity([*self.running, *self.receiving])
        for request in (*self.running, *self.receiving):
            firsts = self.groups.first_blocks(request.num_computed_tokens)
            for table, first in zip(request.block_tables, firsts, strict=True):
                assert held(table[:first]) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_every_read_finds_its_content(kind: str, seed: int) -> None:
    rig = Rig(kind, seed)
    for _ in range(1_200):
        rig.step()
        rig.check()
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


def computed(blocks: BlockManager, tokens: list[int], **options: bool) -> Request:
    request = make_request(tokens, **options)
    assert blocks.take(request, 0, reads_cache=True)
    while request.num_computed_tokens < len(tokens):
        count = blocks.cover(request, min(STEP_TOKENS, len(tokens) - request.num_computed_tokens))
        assert count > 0
        blocks.advance(request, request.num_computed_tokens + count)
    return request


def test_a_request_holds_the_window_of_a_windowed_group() -> None:
    blocks = BlockManager(200, BLOCK_SIZE, True, groups_of("window"), STEP_TOKENS)
    request = computed(blocks, list(range(100)))
    assert [len(held(table)) for table in request.block_tables] == [25, 3]
    assert blocks.take(again := make_request(list(range(100))), 0, reads_cache=True)
    assert again.num_computed_tokens == 96
    assert held(again.other_tables[0])[1:3] == request.other_tables[0][22:24]


def test_a_missing_block_of_a_window_makes_a_hit_shorter() -> None:
    blocks = BlockManager(200, BLOCK_SIZE, True, groups_of("window"), STEP_TOKENS)
    tokens = list(range(100))
    request = computed(blocks, tokens)
    hashes, tables = request.block_hashes, [list(table) for table in request.block_tables]
    assert len(blocks.cache.match(hashes)) == 25
    blocks.free(request)
    while blocks.cache.allocate(1) != tables[1][23:24]:  # in the window of 96 tokens and that of 100
        pass
    found = len(blocks.cache.match(hashes))
    assert found < 24
    assert hashes[24] in blocks.cache  # the first group still has it
    blocks.cache.check_integrity()


def test_a_long_prompt_takes_the_blocks_of_windows_step_by_step() -> None:
    groups = groups_of("window")
    blocks = BlockManager(1 + 50 + 6, BLOCK_SIZE, True, groups, STEP_TOKENS)
    whole = make_request(list(range(200)), keep_blocks=True)
    assert not blocks.take(whole, 0, reads_cache=True)  # 50 blocks of each group
    request = computed(blocks, list(range(200)))
    assert [len(held(table)) for table in request.block_tables] == [50, 3]
    blocks.check_integrity([request])


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_a_pull_does_not_bring_are_not_cached(kind: str) -> None:
    groups = groups_of(kind)
    blocks = BlockManager(200, BLOCK_SIZE, True, groups, STEP_TOKENS)
    request = make_request(list(range(100)), receives_kv=True)
    assert blocks.take(request, 0, reads_cache=True)
    brought = groups.transfer_order(96).blocks(request.block_tables)
    blocks.fills.begin(request)
    blocks.fills.end(request.request_id)
    blocks.receive(request, 96)
    hashes = hash_blocks(request.token_ids, BLOCK_SIZE)
    for length in range(1, len(hashes)):
        assert set(blocks.pin(hashes[:length]).blocks) <= set(brought)


@pytest.mark.parametrize("span", [AttentionSpan(5), AttentionSpan(20, is_chunked=True)])
def test_kv_that_lacks_the_windows_of_its_last_token_is_not_used(span: AttentionSpan) -> None:
    blocks = BlockManager(200, BLOCK_SIZE, True, KVGroups(BLOCK_SIZE, (FULL, span), ((0,), (1,))), STEP_TOKENS)
    request = make_request(list(range(100)), receives_kv=True, receives_whole=True)
    assert blocks.take(request, 0, reads_cache=True)
    blocks.receive(request, 99)  # of 100, because the token after them is not known
    blocks.drop_gaps(request)
    assert request.num_computed_tokens == 0
    assert blocks.cover(request, STEP_TOKENS) == STEP_TOKENS
    blocks.check_integrity([request])


def test_a_long_prefix_without_its_windows_is_passed_over_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    num_blocks, num_looks = 400, 0
    blocks = BlockManager(1 + num_blocks + 10, BLOCK_SIZE, True, groups_of("window"), STEP_TOKENS)
    request = computed(blocks, list(range(num_blocks * BLOCK_SIZE)))
    first_blocks = KVGroups.first_blocks

    def counted(groups: KVGroups, num_tokens: int) -> list[int]:
        nonlocal num_looks
        num_looks += 1
        return first_blocks(groups, num_tokens)

    monkeypatch.setattr(KVGroups, "first_blocks", counted)
    assert len(blocks.cache.match(request.block_hashes[:380])) == 0
    assert num_looks < 5
