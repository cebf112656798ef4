"""Prompts that get the blocks of their windows step by step, from a pool that may have none left."""

from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.groups import KVGroups
from baton.engine.outputs import SampledToken
from baton.engine.request import FinishRule, Request, RequestId, RequestStatus
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Received, StepResult
from baton.engine.scheduling.scheduler import Scheduler

BLOCK_SIZE = 4
CONFIG = EngineConfig(model="", block_size=BLOCK_SIZE, max_num_batched_tokens=16, max_num_seqs=4)
GROUPS = KVGroups(BLOCK_SIZE, (FULL, AttentionSpan(10)), ((0,), (1,)))


def make_scheduler() -> Scheduler:
    blocks = BlockManager(1 + 60, BLOCK_SIZE, True, GROUPS, CONFIG.step_tokens)
    return Scheduler(CONFIG, blocks, FinishRule(frozenset(), 200))


def step(scheduler: Scheduler) -> int:
    """Run a step in which every request that samples gets token 1; return the number of tokens computed."""
    scheduled = scheduler.schedule().requests
    results = [StepResult(SampledToken(1)) if item.samples else StepResult() for item in scheduled]
    scheduler.update(scheduled, results)
    return sum(item.num_new_tokens for item in scheduled)


def test_a_prompt_that_finds_no_block_is_preempted_and_starts_again() -> None:
    scheduler = make_scheduler()
    request = Request(RequestId("r"), list(range(100)), 100, SamplingParams(max_tokens=2))
    scheduler.add(request)
    assert step(scheduler) == 16
    cache = scheduler.blocks.cache
    held = cache.allocate(cache.pool.num_free)
    while step(scheduler):  # it had the blocks of a step and of a window
        held += cache.allocate(cache.pool.num_free)  # those that it gives back, too
    assert (request.status, scheduler.num_preemptions) == (RequestStatus.WAITING, 1)
    cache.release(held)
    while scheduler.num_unfinished:
        assert step(scheduler) > 0
        scheduler.check_integrity()
    assert request.num_output_tokens == 2


def test_a_chunk_is_as_long_as_its_blocks() -> None:
    scheduler = make_scheduler()
    request = Request(RequestId("r"), list(range(100)), 100, SamplingParams(max_tokens=2))
    scheduler.add(request)
    while request.num_computed_tokens < 48:
        assert step(scheduler) == 16
    free = scheduler.blocks.cache.pool.num_free
    held = scheduler.blocks.cache.allocate(free - 1)
    covered = BLOCK_SIZE * (len(request.other_tables[0]) + 1) - 48
    assert 0 < covered < 16
    assert step(scheduler) == covered
    scheduler.blocks.cache.release(held)
    scheduler.check_integrity()


def test_a_pulled_prefix_leaves_no_window_in_the_cache_that_was_not_pulled() -> None:
    scheduler = make_scheduler()
    prompt = list(range(100))
    pulled = Request(RequestId("pulled"), [*prompt], 100, SamplingParams(max_tokens=2), receives_kv=True)
    scheduler.add(pulled)
    assert scheduler.schedule().receiving == [pulled]
    scheduler.end_receive(pulled.request_id, Received(96))
    while scheduler.num_unfinished:
        step(scheduler)
        scheduler.check_integrity()
    shorter = Request(RequestId("shorter"), prompt[:50], 50, SamplingParams(max_tokens=1))
    assert scheduler.blocks.num_cached_tokens(shorter) == 0
    again = Request(RequestId("again"), prompt, 100, SamplingParams(max_tokens=1))
    assert scheduler.blocks.num_cached_tokens(again) == 96


def test_a_request_that_waits_for_blocks_gets_those_given_back_before_another_ends() -> None:
    scheduler = make_scheduler()
    running = Request(RequestId("running"), list(range(31)), 31, SamplingParams(max_tokens=50))
    waiting = Request(RequestId("waiting"), list(range(50, 100)), 50, SamplingParams(max_tokens=1))
    scheduler.add(running)
    assert [step(scheduler), len(scheduler.running)] == [16, 1]
    cache = scheduler.blocks.cache
    held = cache.allocate(cache.pool.num_free - 20)  # the second one needs 13 and 7, and 2 in reserve
    scheduler.add(waiting)
    last = scheduler.schedule().requests
    assert [(item.request, item.samples) for item in last] == [(running, True)]
    assert scheduler.schedule_ahead(last) == []
    scheduler.update(last, [StepResult(SampledToken(1))])
    assert waiting in [item.request for item in scheduler.schedule().requests]
    cache.release(held)
    scheduler.check_integrity()
