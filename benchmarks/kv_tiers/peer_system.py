"""Peer engines with stores of KV, each in a process of its environment, measured inside of it, without HTTP.

- llama.cpp saves and restores the states of sequences, as its server does with `--cache-ram` and `--slot-save-path`.
- vLLM's own offloading (`--kv-offloading-size`) has copies for CUDA and XPU alone: `CPUOffloadingSpec` of its package
  `vllm.v1.kv_offload` raises an error on the CPU backend, which becomes a note.
- LMCache's server process has copies for the CPU backend.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.kv.dtype import kv_bytes_per_token
from benchmarks.engines.cells import BF16
from benchmarks.engines.contestants import Contestant, contestants_by_name
from benchmarks.engines.drivers.driver import Setting
from benchmarks.engines.engine_process import EngineFailed, EngineProcess
from benchmarks.engines.peers import VLLM_LMCACHE
from benchmarks.kv_tiers.baton_system import NUM_OUTPUT_TOKENS, NUM_STORED
from benchmarks.kv_tiers.system import Prompt, SystemFailed
from benchmarks.kv_tiers.tier_setup import drop_cached

NUM_WARM_UP_TOKENS = 64
SPACE = 1.1  # of a stored prompt, compared with its KV: states have headers, and a few generated tokens


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine and the tiers that it has."""

    name: str
    contestant: Contestant
    tiers: tuple[str, ...]


def peers() -> list[Peer]:
    """Return the peers with stores of KV."""
    [vllm] = contestants_by_name(["vllm"])
    variables = {**vllm.variables, "LMCACHE_TRACK_USAGE": "false"}
    with_lmcache = replace(
        vllm, name="vllm_lmcache", driver="vllm_lmcache_driver", peer=VLLM_LMCACHE, variables=variables
    )
    return [
        Peer("llama.cpp", *contestants_by_name(["llama_cpp"]), tiers=("host", "disk")),
        Peer("vLLM", replace(vllm, peer=VLLM_LMCACHE), ("host",)),
        Peer("vLLM with LMCache", with_lmcache, ("host",)),
    ]


class PeerSystem:
    """A loaded engine; a System."""

    def __init__(self, name: str, engine: EngineProcess, directory: Path) -> None:
        """`directory`: of the stored files."""
        self.name = name
        self._engine = engine
        self._directory = directory

    async def compute_s(self, prompt: Prompt) -> float:
        """Return the TTFT of a new prompt."""
        return await asyncio.to_thread(self._run, prompt)

    async def fetch_s(self, prompt: Prompt) -> float:
        """Return the TTFT of a stored prompt."""
        drop_cached(path for path in self._directory.rglob("*") if path.is_file())
        return await asyncio.to_thread(self._run, prompt)

    def limit_s(self, computed_s: float) -> None:
        """Return None: what the engine reads is not known."""

    def _run(self, prompt: Prompt) -> float:
        try:
            [answer] = self._engine.run([prompt], NUM_OUTPUT_TOKENS, 1)
        except EngineFailed as error:
            raise SystemFailed(str(error)) from error
        return answer.first_s - answer.submitted_s


@contextmanager
def peer_system(peer: Peer, tier: str, model: Path, num_tokens: int, environments: Path) -> Iterator[PeerSystem]:
    """Load an engine whose KV cache has room for one prompt. Raises SystemFailed."""
    contestant, cores = peer.contestant, sorted(os.sched_getaffinity(0))
    config = read_model_config(model)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        store = Path(folder) / "store"
        store.mkdir()
        try:
            python = contestant.python(environments)
            converted = contestant.model(model, BF16, environments, Path(folder))
        except (FileNotFoundError, RuntimeError) as error:
            raise SystemFailed(str(error)) from error
        setting = Setting(
            model=str(converted), weights="bf16", kv_cache="bf16", num_threads=len(cores), max_num_seqs=1,
            max_model_len=num_tokens + NUM_OUTPUT_TOKENS, prefix_caching=True, kv_store=tier,
            kv_store_bytes=int(SPACE * NUM_STORED * num_tokens * kv_bytes_per_token(config)),
            kv_store_directory=str(store),
        )  # fmt: skip
        with EngineProcess(python, contestant.driver, contestant.environment(environments), cores, log) as engine:
            try:
                version = engine.load(setting)
                engine.run([list(range(300, 300 + NUM_WARM_UP_TOKENS))], NUM_OUTPUT_TOKENS, 1)
            except EngineFailed as error:
                raise SystemFailed(str(error)) from error
            yield PeerSystem(f"{peer.name} ({version})", engine, store)
