"""The next turn of a chat goes to the worker that has the last one, before the worker has reported the blocks."""

import random
from collections.abc import Sequence

import pytest

from baton.engine.kv.block_hash import hash_blocks
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL
from baton.router.index import prefix_index as expected_blocks
from baton.router.index.prefix_index import LIFE_S, MAX_CHAINS, ExpectedBlocks
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import BLOCK_SIZE, ScriptedWorker

NUM_TURNS = 6


class Clock:
    """A clock that the test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def hashes(token_ids: Sequence[int], salt: str = "") -> bytes:
    return b"".join(hash_blocks(token_ids, BLOCK_SIZE, salt))


async def test_the_next_turn_goes_to_the_worker_that_has_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prompt is the last prompt, the output and more; workers report nothing in between."""
    monkeypatch.setattr(expected_blocks, "LIFE_S", 60.0)  # a busy machine may be long about a turn
    workers = [ScriptedWorker(f"decode-{index}") for index in range(4)]
    rng = random.Random(1)
    async with running_router(*workers) as router:
        for worker in workers:
            worker.may_tell.clear()
        for _ in range(NUM_TURNS):
            prompt = rng.choices(range(300, 3000), k=80)
            body = {"max_tokens": 42, "ignore_eos": True, "return_token_ids": True}
            first = await router.http.post("/v1/completions", json={"prompt": prompt, **body})
            output = first.json()["choices"][0]["token_ids"]
            turn = [*prompt, *output, *rng.choices(range(300, 3000), k=9)]
            second = await router.http.post("/v1/completions", json={"prompt": turn, **body})
            assert second.headers["x-baton-decode"] == first.headers["x-baton-decode"]
        for worker in workers:
            worker.may_tell.set()


async def test_the_prefill_worker_is_expected_to_have_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected_blocks, "LIFE_S", 60.0)
    prefill = [ScriptedWorker(f"prefill-{index}", WORKER_ROLE_PREFILL) for index in range(4)]
    rng = random.Random(2)
    async with running_router(ScriptedWorker(), *prefill) as router:
        for _ in range(NUM_TURNS):
            prompt = rng.choices(range(300, 3000), k=80)
            body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True}
            answers = []
            for _ in range(2):
                headers = {"x-baton-plan": "remote"}
                answers.append(await router.http.post("/v1/completions", json=body, headers=headers))
            first, second = (answer.headers["x-baton-prefill"] for answer in answers)
            assert first == second


def test_the_longest_chain_of_each_worker_is_found_and_other_prompts_find_nothing() -> None:
    expected, prompt = ExpectedBlocks(Clock()), list(range(40))
    expected.note("a", hashes(prompt[:12]))
    expected.note("a", hashes(prompt[:24]))
    expected.note("b", hashes(prompt[:12]))
    expected.note("c", b"")
    assert expected.match(hashes(prompt)) == {"a": 6, "b": 3}
    assert expected.match(hashes(prompt[:23])) == {"a": 3, "b": 3}
    assert expected.match(hashes(prompt, "another tenant")) == {}
    assert expected.match(hashes([7, *prompt])) == {}
    assert expected.match(b"") == {}


def test_expected_blocks_expire() -> None:
    clock = Clock()
    expected, prompt = ExpectedBlocks(clock), list(range(8))
    expected.note("a", hashes(prompt))
    clock.now_s += LIFE_S / 2
    expected.note("b", hashes(prompt))
    expected.note("a", hashes(prompt))
    clock.now_s += LIFE_S / 2
    assert expected.match(hashes(prompt)) == {"a": 2, "b": 2}  # the first one was noted again
    clock.now_s += LIFE_S / 2
    assert expected.match(hashes(prompt)) == {}
    assert not expected._workers
    assert not expected._lengths


@pytest.mark.parametrize("num_noted", [MAX_CHAINS, MAX_CHAINS + 10])
def test_the_oldest_entries_are_evicted(num_noted: int) -> None:
    expected = ExpectedBlocks(Clock())
    chains = [hashes([index, 1, 2, 3]) for index in range(num_noted)]
    for chain in chains:
        expected.note("a", chain)
    known = [bool(expected.match(chain)) for chain in chains]
    assert known == [False] * (num_noted - MAX_CHAINS) + [True] * MAX_CHAINS
