"""Model families with recurrent layers, KV heads of two sizes or sparse attention.

An engine on the device in its dtype is compared with an engine on a CPU in fp32.

Both get the same tokens. Requests join, chunks of prompts are prefilled, prefixes repeat, and the pool is too small for
all requests.
"""

import random
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from benchmarks.gpu.engine_session import EngineSession, greedy, random_prompts
from benchmarks.gpu.handover_engines import transports_of
from benchmarks.gpu.numerics.forced_sampler import ForcedSampler
from benchmarks.gpu.numerics.handover import check_handover
from benchmarks.gpu.numerics.models import Tolerance, compare_models
from benchmarks.gpu.small_models import SmallModel, saved
from benchmarks.gpu.stage import Record, Setting

_SIZES = {"hidden_size": 256, "intermediate_size": 384, "initializer_range": 0.06}
_DELTA_NETS = _SIZES | {
    "head_dim": 128,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
_EXPERTS = {"moe_intermediate_size": 128}
_SHARED = _EXPERTS | {"shared_expert_intermediate_size": 128}
_SPARSE = _SIZES | _EXPERTS | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_topk": 64}

FAMILIES = (
    SmallModel("qwen3-next", _DELTA_NETS | _SHARED, is_sparse=True),
    SmallModel("gemma4", _SIZES | {"head_dim": 256, "global_head_dim": 512, "hidden_size_per_layer_input": 64}),
    SmallModel("deepseek-v32", _SPARSE, is_sparse=True),
    SmallModel("qwen3.5", _DELTA_NETS),
    SmallModel("qwen3.5-moe", _DELTA_NETS | _SHARED, is_sparse=True),
    SmallModel("gemma4-large", _SIZES | {"head_dim": 64, "global_head_dim": 128}),
    SmallModel("gemma4-moe", _SIZES | _EXPERTS | {"head_dim": 64, "global_head_dim": 128}, is_sparse=True),
)
HANDED_OVER = FAMILIES[3]
NUM_QUICK = 3  # one family of each kind

MAX_MODEL_LEN = 256
GROWING_LENS = (61, 58, 63, 60, 57)  # prompts that fit into the small pool together, which their outputs do not
JOINING_LENS = (5, 181, 16, 150, 33, 1, 200)
NUM_TOKENS = 40  # of the longest output
REPEATED = 128  # tokens at the beginning of three prompts
SMALL_POOL, LARGE_POOL = 20, 400  # blocks for KV
NUM_STATES = 4  # in the small pool: of a request, of the checkpoint it reads, and room for two more, to store one
WIDTH = 16  # of heads for which the checkpoints' norms make attention even enough
DENSE = Tolerance(cosine=0.998, margin=0.25, sparse_share=1.0)
SPARSE = Tolerance(
    cosine=0.99, margin=0.25, sparse_share=0.8
)  # roundings choose other experts, and tokens to attend to


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its prompt, and the length of its output."""

    name: str
    prompt: list[int]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Waves:
    """Requests that compete for the pool, and then requests that find a prefix of the one before."""

    joining: list[Asked]
    repeating: list[Asked]

    @classmethod
    def of(cls, vocab_size: int, *, is_quick: bool) -> "Waves":
        """Draw the requests."""
        rng, lens = random.Random(0), GROWING_LENS + JOINING_LENS[: 2 if is_quick else None]
        prompts = random_prompts(lens, vocab_size)
        first, *ends = random_prompts((REPEATED + 22, 40, 3), vocab_size, seed=1)
        repeating = [first, *(first[:REPEATED] + end for end in ends)]
        return cls(
            [
                Asked(f"joining {place}", each, NUM_TOKENS - rng.randint(0, 20) * (place >= len(GROWING_LENS)))
                for place, each in enumerate(prompts)
            ],
            [Asked(f"repeating {place}", each, 8) for place, each in enumerate(repeating)],
        )


@dataclass(frozen=True, slots=True)
class Answers:
    """Logits of each output token by request, [num_tokens, vocab], and how the engine came to them."""

    logits: dict[str, Tensor]
    num_preemptions: int
    num_cached_tokens: int

    @property
    def tokens(self) -> dict[str, list[int]]:
        """The most probable tokens."""
        return {name: rows.argmax(-1).tolist() for name, rows in self.logits.items()}


def engine_of(model: Path, device: torch.device, dtype: str, num_blocks: int) -> Engine:
    """Start an engine with `num_blocks` blocks for KV, and in proportion for recurrent states."""
    options: dict[str, Any] = {
        "model": str(model),
        "device": str(device),
        "dtype": dtype,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 96,
        "state_checkpoint_tokens": 32,
        "async_scheduling": False,
        "hybrid_kv_cache": False,
    }
    config = EngineConfig(**options)
    served = model_config_of(config)
    groups = KVGroups.of(config, served)
    layout = KVCacheLayout.of(served, config.block_size, groups=groups)
    groups = groups.with_states(config, served, layout.block_bytes)
    num_blocks += 1 + NUM_STATES * num_blocks // SMALL_POOL * groups.num_state_blocks
    return Engine(EngineConfig(**options, kv_cache_memory_bytes=num_blocks * layout.block_bytes))


def answer(engine: Engine, waves: Waves, tokens: dict[str, list[int]] | None) -> Answers:
    """Run all requests with these tokens. None: with the most probable ones."""
    sampler = ForcedSampler(engine.model_config.vocab_size, frozenset(), tokens)
    engine.runner.sampler = sampler
    session, rng = EngineSession(engine), random.Random(0)
    for place, asked in enumerate(waves.joining, start=1):
        session.add(asked.name, asked.prompt, greedy(asked.num_tokens))
        session.run_on(rng.choice((0, 1, 3)) if place >= len(GROWING_LENS) else 0)
    session.finish()
    num_before = engine.stats().num_cached_tokens
    for asked in waves.repeating:
        session.add(asked.name, asked.prompt, greedy(asked.num_tokens))
        session.finish()
    stats = engine.stats()
    engine.close()
    logits = {name: torch.stack(rows) for name, rows in sampler.logits.items()}
    return Answers(logits, stats.num_preemptions, stats.num_cached_tokens - num_before)


def even(directory: Path) -> Path:
    """Make the attention of a new checkpoint even: scores of wide heads are large, which multiplies roundings."""
    path = directory / "model.safetensors"
    tensors, mark = load_file(path), directory / "even"
    if not mark.exists():
        for name, tensor in tensors.items():
            if name.endswith("q_norm.weight"):
                tensor.mul_((WIDTH / len(tensor)) ** 0.5)
        save_file(tensors, path, metadata={"format": "pt"})
        mark.touch()
    return directory


def check_family(record: Record, setting: Setting, model: SmallModel) -> None:
    """Compare a family's logits and greedy tokens."""
    directory, name = saved(model, setting.directory), model.architecture
    if name.startswith("gemma4"):
        even(directory)
    reference = engine_of(directory, torch.device("cpu"), "float32", LARGE_POOL)
    waves = Waves.of(reference.model_config.vocab_size, is_quick=setting.is_quick)
    expected = answer(reference, waves, None)
    ours = answer(engine_of(directory, setting.device, setting.dtype_name, SMALL_POOL), waves, expected.tokens)
    names, tolerance = sorted(expected.logits), SPARSE if model.is_sparse else DENSE
    compare_models(
        record,
        name,
        [ours.logits[each] for each in names],
        [expected.logits[each] for each in names],
        tolerance.share(model),
        tolerance,
    )
    record.find(
        f"{name}: scheduling",
        ours.num_preemptions > 0 and ours.num_cached_tokens > 0,
        f"{ours.num_preemptions} preemptions, {ours.num_cached_tokens} tokens of repeated prompts from the cache",
    )


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    setting = replace(setting, directory=setting.directory / "families")
    for model in FAMILIES[: NUM_QUICK if setting.is_quick else None]:
        record.attempt(model.architecture, partial(check_family, record, setting, model))
    record.attempt("handover", partial(check_handover, record, setting, HANDED_OVER, transports_of(setting)[-1:]))
