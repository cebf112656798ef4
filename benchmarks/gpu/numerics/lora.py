"""LoRA adapters on the device, several in a batch, compared with a CPU in fp32 on the same tokens.

Requests with and without adapters join; the ones without end last, so that their decodes are replayed as CUDA graphs.
There are more adapters than places in a batch.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from baton.engine.engine import Engine
from baton.engine.execution.cuda_graphs import GraphedModel
from benchmarks.gpu.engine_session import EngineSession, greedy, random_prompts, start_engine
from benchmarks.gpu.numerics.forced_sampler import ForcedSampler
from benchmarks.gpu.numerics.models import Tolerance, compare_models
from benchmarks.gpu.small_models import SMALL_MODELS, SmallModel, saved
from benchmarks.gpu.stage import Record, Setting
from tests.adapters import ALL_TARGETS, LATENT_TARGETS, make_adapter

ARCHITECTURES = ("llama3", "qwen3", "qwen3-moe", "deepseek-v3")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", *LATENT_TARGETS)  # of a model with experts
RANK = 8
MAX_LORAS = 3
SIZE = 0.1  # of the matrices: changes are about as large as the weights
PROMPT_LENS = (5, 70, 1, 33, 120, 16, 48, 9, 64, 17, 26, 3)
NUM_TOKENS = {True: 12, False: 30}  # by whether a request has an adapter
ENGINE = {"max_num_batched_tokens": 64, "kv_cache_memory_bytes": 64 << 20, "async_scheduling": False}
BF16 = Tolerance(cosine=0.998, margin=0.25, sparse_share=0.85)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's name, and the options of `make_adapter`."""

    name: str
    targets: Sequence[str]
    options: Mapping[str, Any]


def adapters_of(model: SmallModel) -> list[Adapter]:
    """Return adapters of different kinds and ranks for a model."""
    targets = ATTENTION if model.is_sparse else ALL_TARGETS
    return [
        Adapter("low", ALL_TARGETS, {"rank": 2}),
        Adapter("mixed ranks", targets, {"rank": RANK, "ranks": {"q_proj": 3, "v_proj": 5}, "seed": 1}),
        Adapter("dora", targets, {"rank": 4, "use_dora": True, "seed": 2}),
        Adapter("ends", ("embed_tokens", "lm_head", "q_proj"), {"rank": 4, "seed": 3}),
    ]


def start(directory: Path, model: SmallModel, setting: Setting, **options: Any) -> Engine:
    """Start an engine with all adapters."""
    limits = {"enable_lora": True, "max_loras": MAX_LORAS, "max_lora_rank": RANK}
    engine = start_engine(directory, setting, **ENGINE, **limits, **options)
    for each in adapters_of(model):
        path = directory.with_name(f"{directory.name} {each.name}")
        if not path.exists():
            make_adapter(directory, path, each.targets, size=SIZE, **each.options)
        engine.adapters.load(each.name, path)
    return engine


def logits_of(engine: Engine, model: SmallModel, tokens: Mapping[str, Sequence[int]] | None) -> dict[str, Tensor]:
    """Return the logits of all requests with these output tokens, [num_tokens, vocab] each. None: greedy ones."""
    sampler = ForcedSampler(engine.model_config.vocab_size, frozenset(), tokens)
    engine.runner.sampler = sampler
    session, rng = EngineSession(engine), random.Random(0)
    names = [each.name for each in adapters_of(model)]
    for index, prompt in enumerate(random_prompts(PROMPT_LENS, engine.model_config.vocab_size)):
        adapter = [None, *names][index % (1 + len(names))]
        session.add(str(index), prompt, greedy(NUM_TOKENS[adapter is not None]), adapter=adapter)
        session.run_on(rng.choice((0, 1, 3)))
    session.finish()
    return {name: torch.stack(rows) for name, rows in sampler.logits.items()}


def check_adapters(record: Record, setting: Setting, model: SmallModel) -> None:
    """Compare a model with adapters on the device, launched kernel by kernel and with CUDA graphs."""
    directory, name = saved(model, setting.directory / "lora"), model.architecture
    reference = start(directory, model, Setting(torch.device("cpu"), setting.is_quick, setting.directory))
    expected = logits_of(reference, model, None)
    reference.close()
    tokens = {each: rows.argmax(-1).tolist() for each, rows in expected.items()}
    for enforce_eager in (True, False) if setting.device.type == "cuda" else (True,):
        engine = start(directory, model, setting, enforce_eager=enforce_eager)
        ours, is_graphed = logits_of(engine, model, tokens), isinstance(engine.runner.model, GraphedModel)
        engine.close()
        case = f"{name}, {'kernel by kernel' if enforce_eager else 'with CUDA graphs'}"
        pairs = [(ours[each], rows) for each, rows in sorted(expected.items())]
        compare_models(
            record, case, [row for row, _ in pairs], [row for _, row in pairs], share=BF16.share(model), tolerance=BF16
        )
        if not enforce_eager:
            record.find(f"{case}: recorded", is_graphed, "decodes without adapters are CUDA graphs, or see the log")


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    for model in SMALL_MODELS:
        if model.architecture in ARCHITECTURES[: 1 if setting.is_quick else None]:
            record.attempt(model.architecture, partial(check_adapters, record, setting, model))
