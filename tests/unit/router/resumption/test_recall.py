"""Regeneration of output up to the client's position, and the output buffered until then."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from types import SimpleNamespace
from typing import cast
from zlib import crc32

import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos.worker_pb2 import RecalledOutput
from baton.router.errors import ResumeFailed
from baton.router.generation import CompletionDelta, Generation, GenerationRequest
from baton.router.metrics.metrics import RouterMetrics
from baton.router.resumption import resumption
from baton.router.resumption.recall import MAX_COMBINATIONS, TURN_TOKENS, HeldDeltas, Recall
from baton.router.resumption.resumption import OutputTally, Position
from baton.router.workers.pool import WorkerPool

REQUEST = GenerationRequest(request_id="r", prompt=(), sampling=SamplingParams(), n=2)
GENERATION = Generation(REQUEST, [1], SamplingParams())
NUM_AHEAD = 1000  # tokens of a completion before the other one has any


async def _news(num_seen: Sequence[int]) -> AsyncGenerator[CompletionDelta, None]:
    """Yield one token at a time, all of the first completion's before the second's."""
    for index in range(2):
        for count in range(NUM_AHEAD):
            is_seen = count < num_seen[index]
            yield CompletionDelta(index, token_ids=[] if is_seen else [7], seen=[7] if is_seen else [])


def _position(*counts: int) -> Position:
    tally = OutputTally(len(counts))
    for index, count in enumerate(counts):
        tally.add(index, [7] * count)
    return tally.position()


async def _num_deltas(max_held_bytes: int, *num_seen: int) -> int:
    recall = Recall(cast(WorkerPool, None), RouterMetrics("model", 60), max_held_bytes=max_held_bytes)
    checked = recall.checked(_news(num_seen), _position(*num_seen), [GENERATION], OutputTally(2))
    return len([delta async for delta in checked])


async def test_tokens_that_the_client_has_are_not_held() -> None:
    assert await _num_deltas(10_000, NUM_AHEAD, NUM_AHEAD) == 0
    assert await _num_deltas(10_000, NUM_AHEAD - 3, 5) == NUM_AHEAD - 5 + 3


async def test_output_buffered_for_a_position_is_bounded() -> None:
    assert await _num_deltas(1_000_000, 0, 5) == 2 * NUM_AHEAD - 5
    with pytest.raises(ResumeFailed, match="too far apart"):
        await _num_deltas(10_000, 0, 5)


async def test_output_buffered_for_all_requests_is_bounded() -> None:
    recall = Recall(cast(WorkerPool, None), RouterMetrics("model", 60), max_all_held_bytes=600_000)

    def checked() -> AsyncGenerator[CompletionDelta, None]:
        return recall.checked(_news((0, 5)), _position(0, 5), [GENERATION], OutputTally(2))

    held = HeldDeltas(recall.held_bytes)
    for _ in range(NUM_AHEAD):
        held.add(CompletionDelta(0, token_ids=[7]))
    with pytest.raises(ResumeFailed, match="too many resumed requests"):
        [delta async for delta in checked()]
    held.close()
    assert recall.held_bytes.count == 0
    async for _ in checked():
        assert recall.held_bytes.count == 0  # once the position is reached


PROMPT = [1, 2, 3]


def _generation(num_completions: int) -> Generation:
    request = GenerationRequest(
        request_id="r", prompt=(), sampling=SamplingParams(seed=1), n=num_completions, resume_key=b"k" * 20
    )
    return Generation(request, PROMPT, SamplingParams(seed=1))


@dataclass(frozen=True, slots=True)
class Remembering:
    """A worker's connection that returns these outputs, by completion; None: it does not remember the completion."""

    generation: Generation
    outputs: Sequence[Sequence[int] | None]
    fingerprint: str = "f"

    @property
    def description(self) -> SimpleNamespace:
        return SimpleNamespace(fingerprint=self.fingerprint)

    async def recall(self, keys: Sequence[bytes], _timeout_s: float) -> list[RecalledOutput]:
        return [
            RecalledOutput(
                resume_key=key,
                token_ids=token_ids,
                num_prompt_tokens=len(PROMPT),
                seed=self.generation.completion_sampling(index).seed,
            )
            for index, (key, token_ids) in enumerate(zip(keys, self.outputs, strict=True))
            if token_ids is not None
        ]


def _recall(workers: Sequence[Remembering]) -> Recall:
    return Recall(cast(WorkerPool, SimpleNamespace(reached=workers)), RouterMetrics("model", 60))


async def test_each_remembered_token_is_compared_with_a_position_once(monkeypatch: pytest.MonkeyPatch) -> None:
    num_completions, num_tokens = 8, 500
    generation = _generation(num_completions)
    workers = [Remembering(generation, [[worker] * num_tokens] * num_completions) for worker in (5, 6)]
    num_bytes = 0

    def counted(data: bytes, start: int = 0) -> int:
        nonlocal num_bytes
        num_bytes += len(data)
        return crc32(data, start)

    monkeypatch.setattr(resumption, "crc32", counted)
    with pytest.raises(ResumeFailed, match="remembered output differs"):
        await _recall(workers).resumed([generation], Position((num_tokens,) * num_completions, "00000000"))
    num_combining = 4 * num_completions * (MAX_COMBINATIONS * 2 + 1)
    assert num_bytes <= 4 * num_tokens * num_completions * len(workers) + num_combining


async def test_other_tasks_have_turns_while_outputs_are_compared() -> None:
    num_completions, num_turns = 16, 0
    generation = _generation(num_completions)
    token_ids = [7] * (TURN_TOKENS // 2)

    async def other() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    recall = _recall([Remembering(generation, [token_ids] * num_completions)] * 4)
    with pytest.raises(ResumeFailed):
        await recall.resumed([generation], Position((len(token_ids),) * num_completions, "00000000"))
    task.cancel()
    assert num_turns >= 4 * num_completions // 2


def _expected(workers: Sequence[Remembering], client: Sequence[Sequence[int]]) -> list[tuple[int, ...]] | None:
    """The definition, once all workers have responded: the longest outputs that agree, and None if none do."""
    far_enough = []
    for index, tokens in enumerate(client):
        outputs = [tuple(each) for worker in workers if (each := worker.outputs[index]) is not None]
        far_enough.append(sorted((each for each in outputs or [()] if len(each) >= len(tokens)), key=len, reverse=True))
    for combination in islice(product(*far_enough), 10_000):
        if all(list(each[: len(tokens)]) == list(tokens) for each, tokens in zip(combination, client, strict=True)):
            return list(combination)
    return None


async def test_the_longest_outputs_that_agree_are_chosen() -> None:
    rng = random.Random(3)
    num_chosen = 0
    for _ in range(300):
        num_completions = rng.randint(1, 3)
        generation = _generation(num_completions)

        def output() -> list[int] | None:
            return [rng.choice((5, 5, 5, 6)) for _ in range(rng.randint(1, 4))] if rng.random() < 0.8 else None

        outputs = [[output() for _ in range(num_completions)] for _ in range(rng.randint(1, 2))]
        client = [[5] * rng.randint(0, 3) for _ in range(num_completions)]
        tally = OutputTally(num_completions)
        for index, tokens in enumerate(client):
            tally.add(index, tokens)
        workers = [Remembering(generation, each) for each in outputs]
        # A worker's response ends the recall if its outputs agree; of outputs of one length, the first counts.
        responses = [*([each] for each in workers), workers, workers[::-1]]
        expected = [each for part in responses if (each := _expected(part, client)) is not None]
        try:
            [resumed] = await _recall(workers).resumed([generation], tally.position())
        except ResumeFailed:
            assert not expected
            continue
        if expected:
            num_chosen += 1
            assert [start.token_ids for start in resumed.starts] in expected
    assert num_chosen > 50
