"""`baton serve DIR` with a checkpoint saved by transformers and defaults gives transformers' greedy tokens."""

import asyncio
import random
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer, models

from benchmarks.server import served
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.workers_view import wait_all_ready
from tests.marks import slow_case
from tests.oracle import Oracle

NUM_TOKENS = 64
ARCHITECTURES = ("llama3", "deepseek-v3")
OTHER_ARCHITECTURES = (
    *(
        "phi3",
        "phi4-mini",
        "qwen2-moe",
        "olmo2",
        "smollm3",
        "granite",
        "granite-moe",
        "glm",
        "glm4",
        "glm4-moe",
        "seed-oss",
    ),
    *("ernie", "ernie-moe", "minimax-m2", "olmoe", "glm4-moe-lite"),
    *("gemma2", "gemma3", "gemma4", "gemma4-large", "gemma4-moe", "gpt-oss", "olmo3", "llama4", "qwen3-next"),
    *(
        "nemotron-h",
        "nemotron-h-moe",
        "granite-hybrid",
        "granite-hybrid-moe",
        "bamba",
        "falcon-h1",
        "falcon-h1-plain",
        "mamba2",
    ),
    *("qwen3-moe", "llama2", "mistral", "qwen2", "qwen3", "mixtral", "deepseek-v2", "deepseek-v32"),
)


def any_tokenizer() -> Tokenizer:
    """Build a tokenizer with one word per id; the prompts here are token ids."""
    return Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCAB_SIZE)}, unk_token="w0"))


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *map(slow_case, OTHER_ARCHITECTURES)])
async def test_greedy_tokens_through_a_handover(architecture: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model", tokenizer=any_tokenizer())
    oracle = Oracle(model)
    rng = random.Random(2)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(70, 300))] for _ in range(4)]
    async with served(str(model)) as url:
        await wait_all_ready(url)
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client:

            async def complete(prompt: list[int]) -> httpx.Response:
                body = {
                    "prompt": prompt,
                    "max_tokens": NUM_TOKENS,
                    "temperature": 0,
                    "ignore_eos": True,
                    "return_token_ids": True,
                }
                return (await client.post("/v1/completions", json=body)).raise_for_status()

            responses = await asyncio.gather(*(complete(prompt) for prompt in prompts))
    for prompt, response in zip(prompts, responses, strict=True):
        assert response.headers["x-baton-prefill"] == "prefill-0"
        assert response.headers["x-baton-handed-over-tokens"] == str(len(prompt))
        assert response.json()["choices"][0]["token_ids"] == oracle.greedy(prompt, NUM_TOKENS)
