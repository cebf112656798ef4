"""Simulated engines under random work: tokens, block accounting, and a feed that equals the cache."""

import asyncio
import random

import pytest

from baton.engine.errors import QueueFull
from baton.engine.outputs import StepOutput
from baton.simulation.engine.cache_feed import CacheSubscription
from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import OpenPrefill, SimulatedRequest
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import continuation
from baton.simulation.engine.virtual_time import run_in_virtual_time

SPEC = WorkerSpec(
    block_size=4,
    num_blocks=40,  # so few that requests are preempted and blocks evicted
    max_num_seqs=6,
    max_num_batched_tokens=32,
    max_queue_len=20,
    step_s=0.01,
    sequence_s=0.001,
    prefill_tokens_per_s=1000.0,
    block_bytes=1000,
    link_bytes_per_s=1e5,
    num_token_ids=7,
)


class Mirror:
    """A cache rebuilt from its feed."""

    def __init__(self, subscription: CacheSubscription) -> None:
        self.subscription = subscription
        self.hashes: set[bytes] = set()

    def follow(self) -> None:
        """Apply the changes since the last call."""
        changes = self.subscription.take()
        assert set(changes.removed) <= self.hashes
        self.hashes.difference_update(changes.removed)
        assert self.hashes.isdisjoint(changes.stored)
        self.hashes.update(changes.stored)


def watch(engine: SimulatedEngine, draw: random.Random) -> Mirror:
    """Check an engine after every step, and its feed after some."""
    engine.cache_feed.keeps_content = True
    mirror = Mirror(engine.cache_feed.subscribe())

    def check(step: StepOutput) -> None:
        engine.core.scheduler.check_integrity()
        if draw.random() < 0.3:
            mirror.follow()
            assert mirror.hashes == set(engine.core.blocks.cache.snapshot())

    engine.core.listen(check)
    return mirror


def prompt(draw: random.Random) -> list[int]:
    """Return a prompt that shares its prefix with others."""
    start = draw.choice([[1] * 30, [2] * 17, list(range(40))])
    return start[: draw.randrange(1, len(start))] + [draw.randrange(3) for _ in range(draw.randrange(30))]


async def run_one(engines: list[SimulatedEngine], index: int, draw: random.Random) -> str:
    """Run one request on a random engine; its prompt may be computed by another, and it may be aborted."""
    await asyncio.sleep(draw.random() * 4)
    engine, other = draw.sample(engines, 2)
    request = SimulatedRequest(
        request_id=f"r{index}",
        token_ids=prompt(draw),
        num_output_tokens=draw.randrange(1, 40),
        cache_salt=draw.choice(["", "salt"]),
        priority=draw.randrange(2),
    )
    open_prefill: OpenPrefill | None = (lambda _: other.prefill(request)) if draw.random() < 0.5 else None
    timeout_s = draw.choice([0.02, 0.2, 1000.0, 1000.0])
    tokens: list[int] = []
    try:
        async with asyncio.timeout(timeout_s):
            async for token in engine.generate(request, open_prefill):
                tokens.append(token.token_id)  # noqa: PERF401  # tokens before the abort count
        assert len(tokens) == request.num_output_tokens
        outcome = "ended"
    except TimeoutError:
        outcome = "aborted"
    except QueueFull:
        outcome = "refused"
    assert tokens == continuation(request.token_ids, len(tokens), SPEC)
    return outcome


@pytest.mark.parametrize("seed", range(4))
def test_random_work_gives_the_right_tokens(seed: int) -> None:
    async def main() -> None:
        draw = random.Random(seed)
        engines = [SimulatedEngine(SPEC) for _ in range(3)]
        mirrors = [watch(engine, draw) for engine in engines]
        outcomes = await asyncio.gather(*(run_one(engines, index, draw) for index in range(150)))
        await asyncio.sleep(10)
        assert outcomes.count("ended") > 50
        assert outcomes.count("aborted") > 10
        assert sum(engine.load().num_preemptions for engine in engines) > 0
        for engine, mirror in zip(engines, mirrors, strict=True):
            load = engine.load()
            assert (load.num_running, load.num_waiting, load.num_free_blocks) == (0, 0, load.num_blocks)
            engine.core.scheduler.check_integrity()
            mirror.follow()
            assert mirror.hashes == set(engine.core.blocks.cache.snapshot())
            late = Mirror(engine.cache_feed.subscribe())
            late.follow()
            assert late.hashes == mirror.hashes
            check_contents(engine)

    run_in_virtual_time(main())


def check_contents(engine: SimulatedEngine) -> None:
    """Check that every cached block's content is known and has the block's hash."""
    hashes = engine.core.blocks.cache.snapshot()
    assert hashes
    for block_hash in hashes:
        content = engine.cache_feed.content(block_hash)
        assert content.block_hash == block_hash


def test_equal_programs_have_equal_times() -> None:
    async def main() -> list[float]:
        draw = random.Random(7)
        engines = [SimulatedEngine(SPEC) for _ in range(3)]
        await asyncio.gather(*(run_one(engines, index, draw) for index in range(60)))
        return [engine.counters.busy_s for engine in engines]

    assert run_in_virtual_time(main()) == run_in_virtual_time(main())
