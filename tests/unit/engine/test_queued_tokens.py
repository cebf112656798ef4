"""Number of queued tokens that an engine reports."""

from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.outputs import SampledToken
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Received, StepResult
from baton.engine.scheduling.scheduler import Scheduler

PROMPT = list(range(20))


def scheduler(max_num_seqs: int = 1) -> Scheduler:
    config = EngineConfig(model="none", block_size=4, max_num_seqs=max_num_seqs, max_num_batched_tokens=8)
    return Scheduler(config, BlockManager(64, 4, enable_prefix_caching=True), FinishRule(frozenset(), 200))


def request(name: str, token_ids: list[int], **options: object) -> Request:
    return Request(RequestId(name), list(token_ids), len(token_ids), SamplingParams(max_tokens=50, seed=1), **options)  # type: ignore[arg-type]


def step(engine: Scheduler) -> None:
    scheduled = engine.schedule().requests
    engine.update(scheduled, [StepResult(SampledToken(7)) if item.samples else StepResult() for item in scheduled])


def test_tokens_are_counted_until_they_are_computed() -> None:
    engine = scheduler()
    engine.add(request("a", PROMPT))
    assert engine.backlog.num_queued_tokens == 20
    step(engine)
    assert engine.backlog.num_queued_tokens == 12
    step(engine)
    step(engine)
    assert engine.backlog.num_queued_tokens == 1  # it decodes


def test_cached_tokens_of_a_waiting_request_are_not_counted() -> None:
    engine = scheduler()
    engine.add(request("a", PROMPT))
    for _ in range(3):
        step(engine)
    engine.add(request("b", [*PROMPT[:16], 90, 91, 92]))
    assert engine.backlog.num_queued_tokens == 1 + 3
    assert next(iter(engine.waiting)).num_computed_tokens == 0
    engine.check_integrity()


def test_prompt_logprobs_count_the_whole_prompt() -> None:
    engine = scheduler()
    engine.add(request("a", PROMPT))
    for _ in range(3):
        step(engine)
    with_logprobs = request("b", PROMPT)
    with_logprobs.sampling = SamplingParams(max_tokens=5, seed=1, prompt_logprobs=0)
    engine.add(with_logprobs)
    assert engine.backlog.num_queued_tokens == 1 + 20


def test_all_tokens_of_a_preempted_request_are_counted() -> None:
    engine = scheduler()
    engine.add(request("a", PROMPT))
    for _ in range(3):
        step(engine)
    engine._preempt(next(reversed(engine.running)))
    assert engine.backlog.num_queued_tokens == 21


def test_tokens_computed_by_other_workers_are_not_counted() -> None:
    engine = scheduler()
    engine.add(request("a", PROMPT, receives_kv=True))
    backlog = engine.backlog
    assert (backlog.num_queued_tokens, backlog.num_receiving, backlog.num_awaited_blocks) == (0, 1, 5)
    engine.schedule()
    assert (backlog.num_queued_tokens, backlog.num_receiving, backlog.num_awaited_blocks) == (0, 1, 0)
    engine.end_receive(RequestId("a"), Received(8))  # the rest is computed here after all
    assert (engine.backlog.num_queued_tokens, engine.backlog.num_receiving) == (12, 0)


def test_blocks_that_waiting_requests_lack_are_counted() -> None:
    engine = scheduler()
    engine.add(request("a", PROMPT))
    for _ in range(3):
        step(engine)
    engine.add(request("b", [*PROMPT[:16], 90, 91, 92]))
    engine.add(request("c", list(range(100, 110))))
    assert engine.backlog.num_awaited_blocks == 1 + 3
    assert engine.backlog.num_receiving == 0


def test_cached_blocks_that_no_request_holds_are_awaited_too() -> None:
    """They count as free until the request is admitted."""
    engine = scheduler()
    engine.add(request("a", PROMPT))
    while engine.num_unfinished:
        step(engine)
    engine.add(request("b", [*PROMPT[:16], 90, 91, 92]))
    assert engine.backlog.num_queued_tokens == 3
    num_awaited, num_free = engine.backlog.num_awaited_blocks, engine.blocks.num_free
    assert num_awaited == 4 + 1
    step(engine)
    assert engine.blocks.num_free == num_free - num_awaited
