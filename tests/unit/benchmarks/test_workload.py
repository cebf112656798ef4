"""The workloads of the routing benchmark."""

import pytest

from baton.simulation.engine.tokens import continuation
from benchmarks.routing.topology import SERVING_SPEC
from benchmarks.routing.workload import Turn, Workload, chat, mooncake


def test_a_chat_turn_begins_with_the_previous_turn_and_its_output() -> None:
    turns = chat(SERVING_SPEC, seconds=30, sessions_per_s=1, seed=1).turns
    follow_ups = [turn for turn in turns if turn.after is not None]
    assert len(follow_ups) > len(turns) / 2
    for turn in follow_ups:
        assert turn.after is not None
        before = turns[turn.after]
        history = before.token_ids + continuation(before.token_ids, before.num_output_tokens, SERVING_SPEC)
        assert turn.token_ids[: len(history)] == history
        assert len(turn.token_ids) > len(history)
        assert turn.due_s >= before.due_s + 2


def test_chat_turns_are_in_order_within_the_time_and_repeatable_by_seed() -> None:
    workload = chat(SERVING_SPEC, seconds=30, sessions_per_s=1, seed=1)
    times = [turn.due_s for turn in workload.turns]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 30
    assert workload == chat(SERVING_SPEC, seconds=30, sessions_per_s=1, seed=1)
    assert workload != chat(SERVING_SPEC, seconds=30, sessions_per_s=1, seed=2)


def test_trace_prompts_with_equal_hashes_have_equal_tokens() -> None:
    turns = mooncake(SERVING_SPEC, seconds=1, length_scale=1 / 32, time_scale=1).turns
    # hash ids at the start of the excerpt: 0-13; 0, 14-27; 0, 28-41
    first, second = turns[0], turns[1]
    assert len(first.token_ids) == round(6758 / 32)
    assert first.num_output_tokens == round(500 / 32)
    assert first.token_ids[:16] == second.token_ids[:16]
    assert first.token_ids[16:32] != second.token_ids[16:32]


def test_a_trace_rejects_partial_blocks_and_too_many_requests() -> None:
    with pytest.raises(ValueError, match="not a whole number of 16"):
        mooncake(SERVING_SPEC, seconds=1, length_scale=1 / 64, time_scale=1)
    with pytest.raises(ValueError, match="the excerpt of the trace ends"):
        mooncake(SERVING_SPEC, seconds=10_000, length_scale=1 / 32, time_scale=1)


def test_the_reusable_share_counts_whole_blocks_of_an_earlier_prompts_prefix() -> None:
    prompts = [list(range(40)), list(range(40)), [*range(16), *range(100, 124)]]
    workload = Workload("hand-made", [Turn(0.0, prompt, 1) for prompt in prompts])
    assert workload.reusable_share(SERVING_SPEC) == pytest.approx((32 + 16) / 120)


def test_outputs_are_reusable_except_for_their_last_token() -> None:
    prompt = list(range(300, 332))
    history = prompt + continuation(prompt, 16, SERVING_SPEC)
    turns = [Turn(0.0, prompt, 16), Turn(1.0, history, 1), Turn(2.0, [*prompt, *history[32:], 7], 1)]
    assert Workload("hand-made", turns[:2]).reusable_share(SERVING_SPEC) == pytest.approx(32 / 80)
    assert Workload("hand-made", [Turn(0.0, prompt, 17), turns[2]]).reusable_share(SERVING_SPEC) == pytest.approx(
        48 / 81
    )
