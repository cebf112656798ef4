"""A request with drafts of a head has the tokens that it has without, however it moves.

The hidden states that the head reads do not move: elsewhere its context begins with the next token.
"""

import os
import signal
from pathlib import Path

import httpx
import pytest

from benchmarks.server import served
from tests.draft_heads import repeating_head
from tests.integration.moves.speculation_rig import BODY, MODEL, moved_requests, plain_output
from tests.integration.moves.test_stopped_worker import tokens_of
from tests.integration.workers_view import pid_of, wait_all_ready
from tests.unit.engine.speculation.heads.head_rig import option

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return plain_output()


async def test_a_handover_and_another_worker_that_pulls_the_kv(tmp_path: Path, expected: list[int]) -> None:
    drafts = f"--speculative-config={option('eagle', repeating_head(MODEL, tmp_path / 'head'))}"
    flags = ("--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=16")
    async with moved_requests(tmp_path, flags, (*flags, drafts), expected) as (_, first, second):
        for worker in (first, second):
            load = await worker.wait_idle()
            assert load.num_draft_tokens > 0
            assert load.drafting_s > 0


async def test_a_killed_decode_worker(tmp_path: Path, expected: list[int]) -> None:
    drafts = f"--speculative-config={option('eagle', repeating_head(MODEL, tmp_path / 'head'))}"
    flags = ("--prefill", "1", "--decode", "2", "--dtype", "float32", "--num-threads", "1", drafts)
    async with served("", *flags) as url, httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        await wait_all_ready(url)
        async with client.stream("POST", "/v1/completions", json=BODY) as response:
            tokens = tokens_of(response)
            seen = [await anext(tokens) for _ in range(40)]
            os.kill(await pid_of(response.headers["x-baton-decode"], url), signal.SIGKILL)
            seen += [token async for token in tokens]
        assert seen == expected
        page = (await client.get("/metrics")).text
        drafting = [line for line in page.splitlines() if line.startswith("baton:spec_decode_drafting_seconds_total{")]
        assert any(float(line.rpartition(" ")[2]) > 0 for line in drafting)
