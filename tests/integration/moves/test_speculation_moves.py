"""A request with drafts has the tokens that it has without, wherever it is computed, and however it moves."""

from pathlib import Path

import httpx
import pytest

from benchmarks.server import served
from tests.integration.moves.speculation_rig import BODY, moved_requests, plain_output

DRAFTS = '--speculative-config={"method": "ngram", "num_speculative_tokens": 6}'
FLAGS = ("--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=16", DRAFTS)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return plain_output()


async def test_a_handover_and_another_worker_that_pulls_the_kv(tmp_path: Path, expected: list[int]) -> None:
    async with moved_requests(tmp_path, FLAGS, FLAGS, expected) as (prefill, first, _):
        load = await first.wait_idle()
        assert load.num_draft_tokens >= sum(load.accepted_by_position) > 20
        assert (await prefill.wait_idle()).num_drafts == 0


async def test_logprobs_of_accepted_tokens_reach_the_client(expected: list[int]) -> None:
    flags = ("--colocated", "1", "--dtype", "float32", "--num-threads", "1", DRAFTS)
    async with served("", *flags) as url, httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        body = {**BODY, "stream": False, "logprobs": 1}
        [choice] = (await client.post("/v1/completions", json=body)).json()["choices"]
        assert choice["token_ids"] == expected
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["tokens"]) == len(expected)
        assert all(each <= 0 for each in choice["logprobs"]["token_logprobs"])
