"""Admission of requests whose KV comes from other workers, next to prompts that are computed here."""

import pytest

from baton.engine.config import EngineConfig
from baton.engine.lora.memory import AdapterMemory
from baton.engine.lora.use import AdapterUse
from baton.engine.request import Request, RequestId, RequestStatus
from tests.unit.engine.fake_model import reference
from tests.unit.engine.scheduler_rig import BLOCK_SIZE, Rig


def rig_with_a_long_prompt(
    num_blocks: int = 40, max_num_seqs: int = 8, adapters: AdapterUse | None = None
) -> tuple[Rig, Request]:
    """Return a rig whose steps have no tokens left for a while, with a prompt of 20 tokens that waits for some."""
    limits = EngineConfig(model="", block_size=BLOCK_SIZE, max_num_batched_tokens=16, max_num_seqs=max_num_seqs)
    rig = Rig(num_blocks, config=limits, adapters=adapters)
    rig.add("long", [1] * 40, 4)
    rig.step()
    return rig, rig.add("next", [2] * 20, 4)


def test_a_remote_prefill_begins_while_the_prompts_before_it_wait_for_a_step() -> None:
    rig, waiting = rig_with_a_long_prompt()
    moved = rig.add("moved", [3] * 10, 4, receives_kv=True, receives_whole=True)
    rig.step()
    assert rig.receiving == [moved]
    assert waiting.status is RequestStatus.WAITING
    rig.run_to_end()
    assert rig.outputs[RequestId("next")] == reference([2] * 20, 4)
    assert rig.outputs[RequestId("moved")] == reference([3] * 10, 4)


@pytest.mark.parametrize(("num_tokens", "passes"), [(12, True), (13, False)])
def test_a_remote_prefill_leaves_blocks_to_the_prompts_that_it_passes(num_tokens: int, passes: bool) -> None:
    """19 blocks: 10 of the long prompt, one more for its output, 5 of the prompt that waits."""
    rig, waiting = rig_with_a_long_prompt(num_blocks=20)
    moved = rig.add("moved", [3] * num_tokens, 4, receives_kv=True, receives_whole=True)
    rig.step()
    assert rig.receiving == ([moved] if passes else [])
    while waiting.status is RequestStatus.WAITING:
        assert rig.step() > 0
    assert rig.scheduler.num_preemptions == 0
    rig.run_to_end()


def test_remote_prefills_leave_places_in_the_batch_to_the_prompts_that_they_pass() -> None:
    rig, waiting = rig_with_a_long_prompt(max_num_seqs=3)
    moved = [rig.add(f"moved {number}", [3, number], 30, receives_kv=True, receives_whole=True) for number in range(3)]
    rig.step()
    assert rig.receiving == moved[:1]
    rig.step()
    assert waiting.status is RequestStatus.RUNNING  # the long prompt left tokens of this step
    assert rig.receiving == moved  # no prompt waits in front of them
    rig.run_to_end()


def test_remote_prefills_wait_behind_a_prompt_that_waits_for_a_place() -> None:
    rig, waiting = rig_with_a_long_prompt(max_num_seqs=1)
    rig.add("moved", [3] * 10, 4, receives_kv=True, receives_whole=True)
    rig.step()
    assert not rig.receiving
    assert waiting.status is RequestStatus.WAITING
    rig.run_to_end()


def test_a_request_that_receives_only_a_prefix_waits_behind_prompts() -> None:
    """The rest of its prompt takes tokens of steps, for which those in front of it wait."""
    rig, waiting = rig_with_a_long_prompt()
    prefix = rig.add("prefix", [3] * 40, 4, receives_kv=True)
    moved = rig.add("moved", [4] * 10, 4, receives_kv=True, receives_whole=True)
    rig.step()
    assert rig.receiving == [moved]
    rig.step()
    assert waiting.status is RequestStatus.RUNNING
    assert rig.receiving == [moved, prefix]
    rig.run_to_end()


def test_a_remote_prefill_leaves_the_adapters_place_to_the_prompt_that_it_passes() -> None:
    memory = AdapterMemory(limit=2)
    for number in (1, 2):
        memory.put(number, number)
    rig, _ = rig_with_a_long_prompt(adapters=AdapterUse(1, memory))
    waiting = rig.add("first", [5] * 10, 4, adapter_number=1)
    rig.add("moved", [3] * 10, 4, receives_kv=True, receives_whole=True, adapter_number=2)
    rig.step()
    assert not rig.receiving
    while waiting.status is RequestStatus.WAITING:
        assert rig.step() > 0
    assert not rig.receiving
    rig.run_to_end()
