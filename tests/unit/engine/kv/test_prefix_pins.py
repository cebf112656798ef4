"""Pinned prefixes: what they hold, their quotas, and requests that need their blocks."""

import contextlib
import random
import time

import pytest

from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.config import EngineConfig
from baton.engine.kv.block_hash import BlockHash, hash_blocks
from baton.engine.kv.block_manager import BlockManager
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.prefix_pins import REST_S, NoRoomForPin, PinKey, PinShare, PrefixPins
from baton.engine.outputs import SampledToken
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import StepResult
from baton.engine.scheduling.scheduler import Scheduler
from tests.unit.engine.fake_model import VOCAB, reference
from tests.unit.engine.scheduler_rig import BLOCK_SIZE, Rig

ALL = PinShare(worker=1.0)


def hashes_of(prompt: list[int]) -> list[BlockHash]:
    return hash_blocks(prompt, BLOCK_SIZE)


def key(name: str = "a", owner: str = "") -> PinKey:
    return PinKey(owner, name)


class Clock:
    """A clock that the test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def computed(rig: Rig, prompt: list[int], name: str = "first") -> None:
    """Have the cache hold the prompt's full blocks."""
    rig.add(name, [*prompt, 0], 1)
    rig.run_to_end()


def pins_of(rig: Rig, clock: Clock) -> PrefixPins:
    pins = PrefixPins(rig.scheduler.blocks.cache, clock)
    rig.scheduler.blocks.prefix_pins = pins
    return pins


def test_a_pinned_prefix_survives_other_prompts_until_it_expires() -> None:
    rig, clock = Rig(num_blocks=41), Clock()
    pins, prompt = pins_of(rig, clock), [1] * 20
    computed(rig, prompt)
    pin = pins.hold(key(), hashes_of(prompt), 60.0, PinShare())
    assert pin is not None
    assert (pin.num_tokens, len(pin.blocks)) == (20, 5)
    assert pins.figures.num_blocks == 5

    def evict(name: str) -> None:
        for number in range(2):
            rig.add(f"{name}{number}", [5 + number] * 40 + [ord(name)], 30)
        rig.run_to_end()

    evict("x")
    assert len(rig.scheduler.blocks.cache.match(hashes_of(prompt))) == 5
    again = rig.add("again", [*prompt, 0], 1)
    rig.run_to_end()
    assert again.num_cached_tokens == 20
    clock.now_s += 60
    assert pins.of("") == []
    assert pins.figures.num_blocks == 0
    rig.scheduler.blocks.check_integrity([])
    evict("y")
    evict("z")
    assert not rig.scheduler.blocks.cache.match(hashes_of(prompt))


def test_a_prefix_that_is_not_cached_is_not_pinned() -> None:
    rig = Rig(num_blocks=41)
    pins, prompt = rig.scheduler.blocks.prefix_pins, [1] * 20
    computed(rig, prompt[:12])
    assert pins.hold(key(), hashes_of(prompt), 60.0, ALL, min_blocks=5) is None
    assert pins.figures.num_pins == 0
    pin = pins.hold(key(), hashes_of(prompt), 60.0, ALL)
    assert pin is not None
    assert pin.num_tokens == 12


def test_quotas_count_a_common_block_once_and_say_what_is_free() -> None:
    rig = Rig(num_blocks=41)  # 40 usable
    pins, prompt = rig.scheduler.blocks.prefix_pins, [1] * 40
    computed(rig, prompt)
    computed(rig, [2] * 40, "second")
    share = PinShare(worker=0.3, owner=0.2)  # 12 and 8 blocks
    with pytest.raises(NoRoomForPin, match=r"takes 10 more KV blocks, but only 8 of the 8 for pins of one key"):
        pins.hold(key(), hashes_of(prompt), 60.0, share)
    assert pins.hold(key("a"), hashes_of(prompt[:24]), 60.0, share) is not None
    assert pins.hold(key("b"), hashes_of(prompt[:32]), 60.0, share) is not None  # 6 of its 8 blocks are pinned already
    assert pins.figures.num_blocks == 8
    with pytest.raises(NoRoomForPin, match="only 4 of the 12 for all pins"):
        pins.hold(key("c", owner="other"), hashes_of([2] * 20), 60.0, share)
    assert pins.delete(key("a"))
    assert pins.delete(key("b"))
    assert pins.hold(key("c", owner="other"), hashes_of([2] * 20), 60.0, share) is not None
    rig.scheduler.check_integrity()


def test_a_pin_is_extended_and_replaced_under_its_key_alone() -> None:
    rig, clock = Rig(num_blocks=41), Clock()
    pins = pins_of(rig, clock)
    computed(rig, [1] * 20)
    pins.hold(key(), hashes_of([1] * 20), 10.0, ALL)
    pins.hold(key(owner="other"), hashes_of([1] * 8), 10.0, ALL)
    clock.now_s += 9
    pins.hold(key(), hashes_of([1] * 12), 10.0, ALL)
    clock.now_s += 9
    assert [pin.num_tokens for pin in pins.of("")] == [12]
    assert pins.of("other") == []
    assert pins.figures == type(pins.figures)(num_pins=1, num_blocks=3)
    assert not pins.delete(key(owner="other"))
    assert pins.delete(key(), deleted_s=50.0)
    assert not pins.delete(key())
    assert pins.is_deleted(key(), created_s=50.0)
    assert not pins.is_deleted(key(), created_s=51.0)
    rig.scheduler.blocks.check_integrity([])


def test_pins_are_dropped_oldest_first_for_a_request_that_fits_an_empty_pool() -> None:
    rig, clock = Rig(num_blocks=21), Clock()  # 20 usable
    pins = pins_of(rig, clock)
    for number in range(3):
        computed(rig, [number + 1] * 16, f"{number}")
        assert pins.hold(key(f"{number}"), hashes_of([number + 1] * 16), 60.0, ALL) is not None
    request = rig.add("large", [9] * 45, 3)  # 12 blocks beside 12 pinned ones
    rig.run_to_end()
    assert rig.outputs[request.request_id] == reference([9] * 45, 3)
    assert [pin.key.name for pin in pins.of("")] == ["1", "2"]
    assert pins.figures.num_dropped == 1
    with pytest.raises(NoRoomForPin, match="takes new pins in 30 s"):
        pins.hold(key("0"), hashes_of([2] * 16), 60.0, ALL)
    clock.now_s += REST_S
    assert pins.hold(key("0"), hashes_of([2] * 16), 60.0, ALL) is not None


def test_a_request_that_shares_a_pinned_prefix_does_not_need_its_blocks_twice() -> None:
    rig = Rig(num_blocks=21)
    pins = rig.scheduler.blocks.prefix_pins
    computed(rig, [1] * 40)
    assert pins.hold(key(), hashes_of([1] * 40), 60.0, ALL) is not None
    rig.add("longer", [1] * 40 + [2] * 30, 5)  # 19 of the 20 blocks, 10 of them pinned
    rig.run_to_end()
    assert pins.figures.num_dropped == 0


def test_a_running_request_is_preempted_rather_than_a_pin_dropped() -> None:
    rig = Rig(num_blocks=31)
    pins = rig.scheduler.blocks.prefix_pins
    computed(rig, [1] * 40)
    assert pins.hold(key(), hashes_of([1] * 40), 60.0, ALL) is not None
    for number in range(4):
        rig.add(f"{number}", [number + 2] * 8, 40)
    rig.run_to_end()
    assert rig.scheduler.num_preemptions > 0
    assert pins.figures.num_dropped == 0


def test_a_request_that_grows_into_the_pins_goes_on() -> None:
    rig = Rig(num_blocks=21)
    pins = rig.scheduler.blocks.prefix_pins
    computed(rig, [1] * 24)
    computed(rig, [3] * 24, "second")
    for number in (1, 3):
        assert pins.hold(key(f"{number}"), hashes_of([number] * 24), 60.0, ALL) is not None
    request = rig.add("long", [2] * 8, 66)  # grows to 19 of the 20 blocks
    rig.run_to_end()
    assert rig.outputs[request.request_id] == reference([2] * 8, 66)
    assert pins.figures == type(pins.figures)(num_dropped=2)


def test_a_windowed_prompt_drops_the_pins_in_its_way() -> None:
    groups = KVGroups(BLOCK_SIZE, (FULL, AttentionSpan(10)), ((0,), (1,)))
    config = EngineConfig(model="", block_size=BLOCK_SIZE, max_num_batched_tokens=16, max_num_seqs=4)
    blocks = BlockManager(1 + 60, BLOCK_SIZE, True, groups, config.step_tokens)
    scheduler = Scheduler(config, blocks, FinishRule(frozenset(), 200))

    def run(prompt: list[int]) -> int:
        scheduler.add(Request(RequestId(f"{prompt}"), [*prompt], len(prompt), SamplingParams(max_tokens=1)))
        for steps in range(200):
            if not scheduler.num_unfinished:
                return steps
            scheduled = scheduler.schedule().requests
            results = [StepResult(SampledToken(1)) if item.samples else StepResult() for item in scheduled]
            scheduler.update(scheduled, results)
            scheduler.check_integrity()
        raise AssertionError("the prompt is stuck")

    for number, num_tokens in ((1, 80), (3, 40)):
        run([number] * num_tokens)
        pin = blocks.prefix_pins.hold(key(f"{number}"), hashes_of([number] * num_tokens), 60.0, ALL)
        assert pin is not None
        assert pin.num_tokens == num_tokens
    assert len(blocks.cache.match(hashes_of([1] * 80))) == 20
    run([2] * 110)  # 28 blocks and those of a window beside 36 pinned ones
    assert [pin.key.name for pin in blocks.prefix_pins.of("")] == ["3"]


@pytest.mark.parametrize("seed", range(6))
def test_random_workloads_with_pins_produce_the_reference_tokens(seed: int) -> None:
    rng, rig, clock = random.Random(seed), Rig(num_blocks=30), Clock()
    pins = pins_of(rig, clock)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(8, 70))] for _ in range(4)]
    expected: dict[str, tuple[list[int], int]] = {}
    for number in range(60):
        base = rng.choice(prompts)
        prompt = base[: rng.randint(1, len(base))] + [rng.randrange(VOCAB) for _ in range(rng.randint(0, 5))]
        expected[f"{number}"] = prompt, rng.randint(1, 30)
        rig.add(f"{number}", *expected[f"{number}"], receives_kv=rng.random() < 0.2)
        for _ in range(rng.randint(0, 4)):
            rig.step()
        for request in list(rig.receiving):
            rig.end_receive(request, request.num_tokens, with_token=True)
        clock.now_s += rng.choice([0, 1, 20])
        pin_key = key(f"{rng.randrange(4)}", owner=rng.choice(["", "other"]))
        if rng.random() < 0.5:
            with contextlib.suppress(NoRoomForPin):
                pins.hold(pin_key, hashes_of(rng.choice(prompts)), rng.choice([5, 60]), PinShare(rng.choice([0.4, 1])))
        elif rng.random() < 0.3:
            pins.delete(pin_key)
        rig.scheduler.check_integrity()
    rig.run_to_end()
    for name, (prompt, max_tokens) in expected.items():
        assert rig.outputs[RequestId(name)] == reference(prompt, max_tokens), f"seed {seed}, request {name}"
    clock.now_s += 100
    pins.expire()
    rig.scheduler.blocks.check_integrity([])
    assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1


def test_a_request_drops_only_pins_whose_blocks_it_lacks() -> None:
    rig = Rig(num_blocks=21)
    pins = rig.scheduler.blocks.prefix_pins
    for name, prompt in (("own", [1] * 24), ("same", [2] * 16), ("other", [2] * 24)):
        computed(rig, prompt, name)
        assert pins.hold(key(name), hashes_of(prompt), 60.0, ALL) is not None
    rig.add("longer", [1] * 24 + [3] * 33, 1)  # 15 of the 20 blocks, 6 of them those of the oldest pin
    rig.run_to_end()
    assert [pin.key.name for pin in pins.of("")] == ["own", "same"]


def test_pins_are_not_dropped_for_a_request_that_only_waits_for_blocks_being_filled() -> None:
    rig = Rig(num_blocks=21)
    blocks = rig.scheduler.blocks
    computed(rig, [1] * 16)
    assert blocks.prefix_pins.hold(key(), hashes_of([1] * 16), 60.0, ALL) is not None
    rig.add("alone", [2] * 8, 30)  # grows to 10 blocks
    rig.step()
    filled = rig.add("filled", [3] * 35, 1, receives_kv=True)  # 9 blocks beside the 4 of the pin
    for _ in range(60):
        rig.step()
    assert rig.scheduler.num_preemptions > 0
    assert blocks.prefix_pins.figures.num_dropped == 0
    rig.end_receive(filled, 35, with_token=True)
    rig.run_to_end()
    assert rig.outputs[RequestId("alone")] == reference([2] * 8, 30)
    assert blocks.prefix_pins.figures.num_dropped == 0


def test_waiting_requests_and_expiries_do_not_count_the_blocks_of_all_pins_each_time() -> None:
    rig, clock = Rig(num_blocks=2002), Clock()
    pins, prompt = pins_of(rig, clock), [1] * 4000
    blocks = rig.scheduler.blocks.cache.allocate(1000)
    hashes = hashes_of(prompt)
    for index, block in enumerate(blocks):
        rig.scheduler.blocks.cache.store(block, hashes[index], hashes[index - 1] if index else None)
    begin_s = time.process_time()
    for number in range(500):
        pins.hold(key(f"{number}"), hashes, 1.0, ALL)
    assert pins.figures.num_blocks == 1000
    for _ in range(1000):
        assert not pins.make_way(900, [])
    clock.now_s += 1
    pins.expire()
    assert time.process_time() - begin_s < 2.0
    assert pins.figures.num_blocks == 0


def test_an_owner_with_a_share_has_that_share_of_the_places_for_pins() -> None:
    rig = Rig(num_blocks=41)
    pins = rig.scheduler.blocks.prefix_pins
    computed(rig, [1] * 8)
    share = PinShare(worker=0.5, owner=0.05)
    for number in range(51):
        assert pins.hold(key(f"{number}"), hashes_of([1] * 8), 60.0, share) is not None
    with pytest.raises(NoRoomForPin, match="has 51 of at most 51 pins of one key"):
        pins.hold(key("one more"), hashes_of([1] * 8), 60.0, share)
    assert pins.hold(key("0", owner="other"), hashes_of([1] * 8), 60.0, ALL) is not None
