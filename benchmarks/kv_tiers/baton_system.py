"""A Baton server with one worker, measured by a client over HTTP."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.kv.dtype import kv_bytes_per_token
from benchmarks.kv_tiers.system import Prompt, SystemFailed
from benchmarks.kv_tiers.tier_setup import TierSetup, tier_setup
from benchmarks.load import RequestTimes, run_wave
from benchmarks.server import served

NUM_OUTPUT_TOKENS = 4
BLOCK_SIZE = 16
SPARE_BLOCKS = 6  # of the KV cache, in which the beginning of the former prompt may be left
NUM_STORED = 4  # prompts that the store has room for
SAVE_S = 1.0  # until the blocks of a prompt are saved
STORED = "x-baton-stored-tokens"
NAMES = {"nixl-posix": "shared"}  # of tiers in responses, if they differ


class BatonSystem:
    """A server with one tier; a System."""

    name = "Baton"

    def __init__(self, url: str, tier: str, setup: TierSetup, token_bytes: int) -> None:
        self._url = url
        self._tier = tier
        self._setup = setup
        self._token_bytes = token_bytes
        self._num_tokens = 0  # of the last prompt
        self._num_stored = 0  # tokens of the last prompt that were fetched

    async def compute_s(self, prompt: Prompt) -> float:
        """Return the TTFT of a new prompt."""
        return (await self._run(prompt)).ttft_s

    async def fetch_s(self, prompt: Prompt) -> float:
        """Return the TTFT of a stored prompt. Raises SystemFailed if it did not come from the tier."""
        await asyncio.sleep(SAVE_S)
        self._setup.drop_caches()
        times = await self._run(prompt)
        self._num_tokens, self._num_stored = len(prompt), self._count_stored(times, len(prompt))
        return times.ttft_s

    def limit_s(self, computed_s: float) -> float:
        """Return the time in which one thread reads the stored bytes, and the rest is computed at the prompt's rate."""
        self._setup.drop_caches()
        read_s = self._token_bytes * self._num_stored / self._setup.read_all()
        return read_s + computed_s * (1 - self._num_stored / self._num_tokens)

    async def _run(self, prompt: Prompt) -> RequestTimes:
        return (await run_wave(self._url, [list(prompt)], NUM_OUTPUT_TOKENS)).requests[0]

    def _count_stored(self, times: RequestTimes, num_tokens: int) -> int:
        """Return how many tokens of a prompt came from the tier: nearly all."""
        name, _, count = times.headers.get(STORED, "").partition("=")
        is_tier = name == NAMES.get(self._tier, self._tier)
        if not is_tier or int(count) < num_tokens - (SPARE_BLOCKS + 2) * BLOCK_SIZE:
            found = times.headers.get(STORED)
            raise SystemFailed(f"{STORED}: {found!r}, but all {num_tokens} are in the {self._tier} tier")
        return int(count)


@asynccontextmanager
async def baton_system(model: Path, tier: str, num_tokens: int) -> AsyncIterator[BatonSystem]:
    """Run a server whose KV cache has room for one prompt."""
    token_bytes = kv_bytes_per_token(read_model_config(model))
    pool_bytes = (num_tokens + SPARE_BLOCKS * BLOCK_SIZE) * token_bytes
    cache = ("--colocated", "1", "--kv-cache-memory-bytes", str(pool_bytes))
    with tempfile.TemporaryDirectory() as directory:
        async with (
            tier_setup(tier, Path(directory), NUM_STORED * num_tokens * token_bytes) as setup,
            served(str(model), *cache, *setup.flags) as url,
        ):
            yield BatonSystem(url, tier, setup, token_bytes)
