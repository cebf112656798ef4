"""The scheduler over random workloads on a model that detects every wrong block."""

import random

import pytest

from baton.engine.config import EngineConfig
from baton.engine.errors import InvalidRequest, QueueFull
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.marks import slow_case
from tests.unit.engine.fake_model import VOCAB, reference
from tests.unit.engine.scheduler_rig import BLOCK_SIZE, Rig


@pytest.mark.parametrize("max_forced", [slow_case(0), 9])
def test_random_workloads_produce_the_reference_tokens(max_forced: int) -> None:
    for seed in range(30):
        rng = random.Random(seed)
        rig = Rig(num_blocks=rng.choice([26, 30, 60]), max_forced=max_forced)
        prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))] for _ in range(4)]
        requests: dict[str, tuple[list[int], int]] = {}
        aborted: set[str] = set()
        pins: list[int] = []
        for number in range(60):
            base = rng.choice(prompts)
            prompt = base[: rng.randint(1, len(base))] + [rng.randrange(VOCAB) for _ in range(rng.randint(0, 5))]
            name = f"{number}"
            requests[name] = (prompt, rng.randint(1, 30))
            rig.add(name, prompt, requests[name][1], priority=rng.choice([0, 0, 1]), receives_kv=rng.random() < 0.3)
            for _ in range(rng.randint(0, 4)):
                rig.step()
            for request in list(rig.receiving):
                if rng.random() < 0.5:
                    whole = rng.random() < 0.7
                    known = request.num_computed_tokens
                    num_tokens = request.num_tokens if whole else rng.randint(known, request.num_tokens)
                    rig.end_receive(request, num_tokens, with_token=rng.random() < 0.8)
            if rng.random() < 0.15:
                victim = f"{rng.randint(0, number)}"
                if rig.scheduler.abort(RequestId(victim)):
                    aborted.add(victim)
                rig.scheduler.check_integrity()
            if rng.random() < 0.1:
                pins.append(rig.scheduler.blocks.pin(rig.scheduler.blocks.cache.snapshot()[:1]).pin_id)
            elif pins:
                rig.scheduler.blocks.pins.release(pins.pop())
            rig.scheduler.check_integrity()
        rig.run_to_end()
        for pin in pins:
            rig.scheduler.blocks.pins.release(pin)
        for name, (prompt, max_tokens) in requests.items():
            expected = reference(prompt, max_tokens)
            got = rig.outputs[RequestId(name)]
            assert got == (expected[: len(got)] if name in aborted else expected), f"seed {seed}, request {name}"
        rig.scheduler.blocks.check_integrity([])
        assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1


def test_preemption_changes_no_token() -> None:
    rig = Rig(num_blocks=16)
    prompts = [[number] * 7 for number in range(6)]
    for number, prompt in enumerate(prompts):
        rig.add(f"{number}", prompt, 40)
    rig.run_to_end()
    assert rig.scheduler.num_preemptions > 0
    for number, prompt in enumerate(prompts):
        assert rig.outputs[RequestId(f"{number}")] == reference(prompt, 40)


def test_a_request_with_kept_blocks_is_never_preempted() -> None:
    """A prefill for another worker announces its blocks as they fill, and keeps them until it is released."""
    rig = Rig(num_blocks=49)
    for number in range(6):
        rig.add(f"{number}", [number] * 8, 60)
    for _ in range(5):
        rig.step()
    job = rig.add("job", [9] * 60, 1, keep_blocks=True)
    announced: list[int] = []
    for _ in range(60):
        rig.step()
        announced = announced or list(job.block_table)
        assert job.block_table[: len(announced)] == announced
    assert rig.outputs[job.request_id] == reference([9] * 60, 1)
    assert job.num_preemptions == 0
    assert rig.scheduler.num_preemptions > 0
    rig.scheduler.abort(job.request_id)
    rig.run_to_end()
    for number in range(6):
        assert rig.outputs[RequestId(f"{number}")] == reference([number] * 8, 60)


def test_the_oldest_request_is_never_preempted() -> None:
    rig = Rig(num_blocks=16)
    oldest = rig.add("oldest", [1] * 5, 50)
    for number in range(5):
        rig.add(f"{number}", [number] * 9, 40)
    rig.run_to_end()
    assert oldest.num_preemptions == 0
    assert rig.scheduler.num_preemptions > 0


def test_a_long_prompt_does_not_hold_up_decodes() -> None:
    rig = Rig()
    rig.add("short", [1, 2], 30)
    rig.step()
    rig.add("long", [3] * 60, 1)
    before = len(rig.outputs[RequestId("short")])
    for count in range(1, 4):
        rig.step()
        assert len(rig.outputs[RequestId("short")]) == before + count
    rig.run_to_end()


def test_requests_run_in_order_of_priority_then_arrival() -> None:
    rig = Rig(config=EngineConfig(model="", block_size=BLOCK_SIZE, max_num_batched_tokens=16, max_num_seqs=1))
    order = []
    for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -1)):
        rig.add(name, [1, 2, 3], 2, priority=priority)
    while rig.scheduler.num_unfinished:
        rig.step()
        order += [name for name in rig.ends if name not in order]
    assert order == ["urgent", "first", "second", "late"]


def test_a_prefix_hit_skips_the_computation() -> None:
    rig = Rig()
    prompt = list(range(20))
    rig.add("cold", prompt, 1)
    rig.run_to_end()
    warm = rig.add("warm", prompt, 1)
    assert rig.step() == 4  # the last block is computed, so that there is something to sample from
    assert warm.num_cached_tokens == 16
    other = rig.add("other", prompt, 1, cache_salt="tenant")
    rig.run_to_end()
    assert other.num_cached_tokens == 0


def test_prompt_logprobs_bypass_the_cache() -> None:
    rig = Rig()
    rig.add("cold", list(range(12)), 1)
    rig.run_to_end()
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
    request = Request(RequestId("echo"), list(range(12)), 12, sampling)
    rig.outputs[request.request_id] = []
    rig.scheduler.add(request)
    assert rig.step() == 12


def test_kept_blocks_stay_until_they_are_released() -> None:
    rig = Rig()
    request = rig.add("kept", [1] * 10, 1, keep_blocks=True)
    rig.run_to_end()
    assert rig.ends[request.request_id] is FinishReason.LENGTH
    assert len(request.block_table) == 3
    assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1 - 3
    assert rig.scheduler.abort(request.request_id)
    assert not rig.scheduler.abort(request.request_id)
    assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1


@pytest.mark.parametrize("pulls_prefix", [False, True])
def test_blocks_that_a_peer_may_read_outlive_a_failure(pulls_prefix: bool) -> None:
    rig = Rig()
    request = rig.add("read", [1] * 30, 1, keep_blocks=True, receives_kv=pulls_prefix)
    rig.step()
    output = rig.scheduler.fail(request, QueueFull("try again"))
    assert output.finish_reason is FinishReason.ERROR
    if pulls_prefix:
        rig.end_receive(request, 10, with_token=False)
    assert len(request.block_table) == 8
    rig.run_to_end()
    rig.scheduler.check_integrity()
    assert rig.scheduler.abort(request.request_id)
    assert request.finish_reason is FinishReason.ERROR
    assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1


def test_blocks_being_filled_outlive_an_abort() -> None:
    rig = Rig()
    request = rig.add("moved", [1] * 10, 5, receives_kv=True)
    rig.step()
    assert rig.receiving == [request]
    rig.scheduler.abort(request.request_id)
    rig.scheduler.check_integrity()
    assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1 - 3
    rig.end_receive(request, 0, with_token=False)
    assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1


def test_an_id_is_refused_while_its_blocks_are_filled() -> None:
    """The end of the first fill would otherwise end that of the second request."""
    rig = Rig()
    first = rig.add("moved", [1] * 10, 5, receives_kv=True)
    rig.step()
    rig.scheduler.abort(first.request_id)
    with pytest.raises(InvalidRequest, match="moved is in use"):
        rig.add("moved", [2] * 10, 5, receives_kv=True)
    rig.end_receive(first, 0, with_token=False)
    second = rig.add("moved", [2] * 10, 5, receives_kv=True)
    rig.run_to_end()
    assert rig.outputs[second.request_id] == reference([2] * 10, 5)
    assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1


def test_a_request_ends_at_a_stop_token_or_at_max_tokens() -> None:
    rig = Rig()
    token = reference([1, 2, 3], 3)[2]
    for name, sampling, expected in (
        ("stop", SamplingParams(max_tokens=9, stop_token_ids=frozenset([token])), FinishReason.STOP),
        ("length", SamplingParams(max_tokens=3), FinishReason.LENGTH),
        ("late", SamplingParams(max_tokens=9, min_tokens=4, stop_token_ids=frozenset([token])), FinishReason.LENGTH),
    ):
        rig.outputs[RequestId(name)] = []
        rig.scheduler.add(Request(RequestId(name), [1, 2, 3], 3, sampling))
        rig.run_to_end()
        assert rig.ends[RequestId(name)] is expected
        assert rig.outputs[RequestId(name)][:3] == reference([1, 2, 3], 3)


def test_the_context_length_ends_a_request() -> None:
    rig = Rig()
    request = rig.add("long", [1] * 90, 1000)
    rig.run_to_end()
    assert request.num_tokens == 100
    assert rig.ends[request.request_id] is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [([], 1, "at least one token"), ([1] * 100, 1, "context of 100"), ([1] * 60, 40, "blocks of KV")],
)
def test_a_request_that_can_never_run_is_refused(prompt: list[int], max_tokens: int, message: str) -> None:
    rig = Rig(num_blocks=20)
    with pytest.raises(InvalidRequest, match=message):
        rig.add("bad", prompt, max_tokens)
    rig.scheduler.check_integrity()
    assert rig.scheduler.num_unfinished == 0


def test_the_queue_is_bounded_and_ids_are_unique() -> None:
    rig = Rig(config=EngineConfig(model="", block_size=BLOCK_SIZE, max_num_waiting=2))
    rig.add("a", [1], 1)
    with pytest.raises(InvalidRequest, match="in use"):
        rig.add("a", [1], 1)
    rig.add("b", [1], 1)
    with pytest.raises(QueueFull, match="the maximum"):
        rig.add("c", [1], 1)
    rig.run_to_end()


def test_receiving_requests_do_not_block_local_ones() -> None:
    rig = Rig(num_blocks=60)
    for number in range(20):
        rig.add(f"elsewhere {number}", [number] * 6, 4, receives_kv=True)
    rig.add("here", [1, 2, 3], 1)
    rig.step()
    assert len(rig.receiving) == 20
    assert rig.outputs[RequestId("here")] == reference([1, 2, 3], 1)
    rig.run_to_end()
    assert rig.outputs[RequestId("elsewhere 19")] == reference([19] * 6, 4)


def test_a_request_that_has_all_its_tokens_is_refused() -> None:
    rig = Rig()
    with pytest.raises(InvalidRequest, match="2 output tokens already"):
        rig.scheduler.add(Request(RequestId("moved"), [1, 2, 3, 4], 2, SamplingParams(max_tokens=2)))


def test_a_budget_that_would_starve_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        Rig(config=EngineConfig(model="", max_num_batched_tokens=8, max_num_seqs=8))


def test_requests_that_cannot_be_sampled_leave_half_of_the_batch_to_others() -> None:
    rig = Rig()
    unready = [f"{number}" for number in range(12)]
    rig.unready.update(map(RequestId, unready))
    for number, name in enumerate(unready):
        rig.add(name, [number] * 9, 5)
    rig.add("plain", [3] * 9, 5)
    for _ in range(20):
        rig.step()
    assert rig.outputs[RequestId("plain")] == reference([3] * 9, 5)
    assert [request.request_id for request in rig.scheduler.running] == unready[:4]
    assert all(
        request.num_computed_tokens == 8 for request in rig.scheduler.running
    )  # the prompt but for its last token
    rig.unready.discard(RequestId("7"))  # is ready before those in front of it
    rig.step()
    assert [request.request_id for request in rig.scheduler.running] == [*unready[:4], "7"]
    rig.unready.clear()
    rig.run_to_end()
    for number, name in enumerate(unready):
        assert rig.outputs[RequestId(name)] == reference([number] * 9, 5)


@pytest.mark.parametrize("max_forced", [slow_case(0), 9])
def test_random_workloads_of_requests_that_cannot_be_sampled_at_times(max_forced: int) -> None:
    num_preemptions = 0
    for seed in range(20):
        rng = random.Random(seed)
        rig = Rig(num_blocks=rng.choice([26, 30]), max_forced=max_forced)
        requests: dict[RequestId, tuple[list[int], int]] = {}
        aborted: set[RequestId] = set()
        for number in range(40):
            name, prompt = RequestId(f"{number}"), [rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))]
            requests[name] = prompt, rng.randint(1, 30)
            if rng.random() < 0.7:
                rig.unready.add(name)
            rig.add(name, *requests[name], priority=rng.choice([0, 0, 1]))
            for _ in range(rng.randint(0, 3)):
                rig.step()
            for each in requests:  # a mask may be late at any time
                if rng.random() < 0.3:
                    rig.unready.discard(each)
                elif rng.random() < 0.05:
                    rig.unready.add(each)
            if rng.random() < 0.1 and rig.scheduler.abort(victim := RequestId(f"{rng.randint(0, number)}")):
                aborted.add(victim)
            rig.scheduler.check_integrity()
        rig.unready.clear()
        rig.run_to_end()
        num_preemptions += rig.scheduler.num_preemptions
        for name, (prompt, max_tokens) in requests.items():
            expected = reference(prompt, max_tokens)
            got = rig.outputs[name]
            assert got == (expected[: len(got)] if name in aborted else expected), f"seed {seed}, request {name}"
        assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1
    assert num_preemptions > 0
