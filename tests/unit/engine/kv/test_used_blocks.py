"""Blocks that stores below the pool copy: which are offered, and what the copies leave as it was."""

import time

import pytest

from baton.engine.kv.block_hash import BlockHash
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.origin import KVOrigin
from baton.engine.kv.used_blocks import MAX_BLOCKS, REPEAT_S, FetchedBlocks, UsedBlock, UsedBlocks
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams

BLOCK_SIZE = 4
NUM_BLOCKS = 12


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def blocks(clock: Clock) -> BlockManager:
    blocks = BlockManager(NUM_BLOCKS + 1, BLOCK_SIZE, enable_prefix_caching=True)
    blocks.used = UsedBlocks(clock)
    return blocks


def compute(blocks: BlockManager, token_ids: list[int]) -> Request:
    """Run a request that computes all of its tokens but the last."""
    request = Request(RequestId("request"), token_ids, len(token_ids), SamplingParams())
    assert blocks.take(request, reserve=0, reads_cache=True)
    blocks.advance(request, len(token_ids) - 1)
    blocks.free(request)
    blocks.check_integrity([])
    return request


def save(blocks: BlockManager, count: int = 100) -> list[UsedBlock]:
    taken = blocks.take_used(count)
    assert all(end_copy(blocks, taken))
    return taken


def end_copy(blocks: BlockManager, taken: list[UsedBlock]) -> list[bool]:
    assert blocks.used is not None
    return blocks.used.end_copy(taken, blocks.cache.pool)


def test_a_saved_prompt_still_loses_its_end_first(blocks: BlockManager) -> None:
    """A pin would make the blocks of each batch more recently used than those of earlier batches."""
    request = compute(blocks, list(range(10 * BLOCK_SIZE + 1)))
    for _ in range(5):
        assert len(save(blocks, 2)) == 2
    compute(blocks, list(range(100, 100 + 4 * BLOCK_SIZE)))
    assert len(blocks.cache.match(request.block_hashes)) >= 7


def test_a_copy_is_bad_once_its_block_was_allocated(blocks: BlockManager) -> None:
    compute(blocks, list(range(10 * BLOCK_SIZE + 1)))
    taken = blocks.take_used(10)
    compute(blocks, list(range(100, 100 + 4 * BLOCK_SIZE)))
    compute(blocks, list(range(10 * BLOCK_SIZE + 1)))  # the same hashes are cached again, in part in the same blocks
    are_good = end_copy(blocks, taken)
    assert are_good == [True] * 8 + [False] * 2
    assert {each.block_hash for each in taken[8:]} <= {each.block_hash for each in blocks.take_used(100)}


def test_popular_blocks_are_saved_once_in_a_while(blocks: BlockManager, clock: Clock) -> None:
    """Every request of a popular prompt finds them."""
    prompt = list(range(10 * BLOCK_SIZE + 1))
    compute(blocks, prompt)
    assert len(save(blocks)) == 10
    compute(blocks, prompt)
    assert save(blocks) == []
    for _ in range(2):
        clock.now_s += REPEAT_S + 1
        compute(blocks, list(range(100, 100 + BLOCK_SIZE + 1)))
        save(blocks)
    compute(blocks, prompt)
    assert len(save(blocks)) >= 9


def test_a_block_that_is_computed_again_is_saved_again(blocks: BlockManager) -> None:
    """Stores have evicted it as well, or it would have been fetched."""
    prompt = list(range(10 * BLOCK_SIZE + 1))
    compute(blocks, prompt)
    save(blocks)
    compute(blocks, list(range(100, 100 + NUM_BLOCKS * BLOCK_SIZE)))
    save(blocks)
    request = compute(blocks, prompt)
    assert [each.block_hash for each in save(blocks)] == request.block_hashes


def test_fetched_blocks_are_left_out_of_the_only_store(blocks: BlockManager) -> None:
    assert blocks.used is not None
    hashes = compute(blocks, list(range(10 * BLOCK_SIZE + 1))).block_hashes
    blocks.used.note_fetched(FetchedBlocks(hashes[:4], is_only_store=True))
    assert [each.block_hash for each in save(blocks)] == hashes[4:]


def test_fetched_blocks_are_left_out_of_several_stores_after_a_copy(blocks: BlockManager) -> None:
    assert blocks.used is not None
    hashes = compute(blocks, list(range(10 * BLOCK_SIZE + 1))).block_hashes
    blocks.used.note_fetched(FetchedBlocks(hashes, is_only_store=False))
    assert [each.block_hash for each in save(blocks, 6)] == hashes[:6]
    blocks.used.note(hashes, is_popular=True)
    blocks.used.note_fetched(FetchedBlocks(hashes, is_only_store=False))
    assert [each.block_hash for each in save(blocks)] == hashes[6:]


def test_blocks_of_the_only_store_are_found_again_without_a_copy(blocks: BlockManager, clock: Clock) -> None:
    """Every request of a popular prompt finds them, and the store has them."""
    assert blocks.used is not None
    prompt = list(range(10 * BLOCK_SIZE + 1))
    blocks.used.note_fetched(FetchedBlocks(compute(blocks, prompt).block_hashes, is_only_store=True))
    compute(blocks, prompt)
    assert save(blocks) == []
    for _ in range(2):
        clock.now_s += REPEAT_S + 1
        blocks.used.note_fetched(FetchedBlocks([], is_only_store=True))
    compute(blocks, prompt)
    assert len(save(blocks)) == 10


def test_a_long_backlog_costs_the_engine_little() -> None:
    """It is there while a store hangs; the engine's thread adds to it in every step."""
    used, hashes = UsedBlocks(), [BlockHash(number.to_bytes(16)) for number in range(MAX_BLOCKS + MAX_BLOCKS // 2)]

    def note_s(some: list[BlockHash]) -> float:
        started_s = time.perf_counter()
        used.note(some, is_popular=False)
        return time.perf_counter() - started_s

    empty_s = note_s(hashes[: MAX_BLOCKS // 2])
    used.note(hashes[:MAX_BLOCKS], is_popular=False)
    assert note_s(hashes[MAX_BLOCKS:]) < 20 * empty_s  # a dict takes 100 times as long
    assert used.take(2) == hashes[MAX_BLOCKS // 2 :][:2]
    assert len(used) == MAX_BLOCKS - 2


def test_kv_of_other_models_is_not_saved(blocks: BlockManager) -> None:
    """A store's namespace has the KV of one model, bit for bit."""
    request = Request(RequestId("received"), list(range(4 * BLOCK_SIZE + 1)), 4 * BLOCK_SIZE + 1, SamplingParams())
    assert blocks.take(request, reserve=0, reads_cache=True)
    origin = frozenset({KVOrigin("gptq", "3-other")})
    blocks.set_origins(request, 2 * BLOCK_SIZE, dict.fromkeys(request.block_table[:2], origin))
    blocks.receive(request, 2 * BLOCK_SIZE)
    blocks.advance(request, 4 * BLOCK_SIZE)  # computed from theirs
    assert len(blocks.cache.match(request.block_hashes)) == 4
    assert blocks.take_used(100) == []
