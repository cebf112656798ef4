"""A request with drafts of a draft model has the tokens that it has without, however it moves.

The draft model's KV does not move: another worker computes it from the tokens.
"""

from pathlib import Path

import pytest

from tests.draft_checkpoints import with_noise
from tests.integration.moves.speculation_rig import MODEL, moved_requests, plain_output
from tests.unit.engine.speculation.draft_rig import option

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return plain_output()


async def test_a_handover_and_another_worker_that_pulls_the_kv(tmp_path: Path, expected: list[int]) -> None:
    draft = with_noise(MODEL, tmp_path / "draft", 0.02)
    drafts = f"--speculative-config={option(draft)}"
    flags = ("--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=16")
    async with moved_requests(tmp_path, flags, (*flags, drafts), expected) as (_, first, second):
        for worker in (first, second):
            load = await worker.wait_idle()
            assert load.num_draft_tokens > 0
            assert load.drafting_s > 0
