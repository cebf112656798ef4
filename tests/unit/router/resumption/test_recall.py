"""Output that is generated again up to its client's position, and what is held until then."""

from collections.abc import AsyncGenerator, Sequence
from typing import cast

import pytest

from baton.engine.sampling.params import SamplingParams
from baton.router.errors import ResumeFailed
from baton.router.generation import ChoiceDelta, Generation, GenerationRequest
from baton.router.metrics.metrics import RouterMetrics
from baton.router.resumption.recall import Recall
from baton.router.resumption.resumption import OutputTally, Position
from baton.router.workers.pool import WorkerPool

REQUEST = GenerationRequest(request_id="r", prompt=(), sampling=SamplingParams(), n=2)
GENERATION = Generation(REQUEST, [1], SamplingParams())
NUM_AHEAD = 1000  # tokens of a choice before the other one has any


async def _news(num_seen: Sequence[int]) -> AsyncGenerator[ChoiceDelta, None]:
    """One token at a time, all of the first choice's in front of the second's."""
    for index in range(2):
        for count in range(NUM_AHEAD):
            is_seen = count < num_seen[index]
            yield ChoiceDelta(index, token_ids=[] if is_seen else [7], seen=[7] if is_seen else [])


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


async def test_what_is_held_for_a_position_is_bounded() -> None:
    assert await _num_deltas(1_000_000, 0, 5) == 2 * NUM_AHEAD - 5
    with pytest.raises(ResumeFailed, match="too far apart"):
        await _num_deltas(10_000, 0, 5)
