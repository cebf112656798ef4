"""Decodes with CUDA graphs and asynchronous scheduling compared with the same engine without either.

Requests are added and finish during the run.
"""

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baton.engine.execution.cuda_graphs import GraphedModel
from benchmarks.gpu.engine_session import Answer, EngineSession, greedy, random_prompts, start_engine
from benchmarks.gpu.numerics.answers import compare_answers
from benchmarks.gpu.small_models import SMALL_MODELS, SmallModel, saved
from benchmarks.gpu.stage import Record, Setting

ARCHITECTURES = ("qwen3", "qwen3-moe", "deepseek-v3", "llama3")
NUM_REQUESTS = 40
MAX_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Run:
    """An engine's outputs, and whether it replayed CUDA graphs."""

    answers: dict[str, Answer]
    is_replayed: bool


def answer(directory: Path, setting: Setting, logprobs: int | None, **options: Any) -> Run:
    """Run requests of various lengths, some of which are added between steps."""
    engine = start_engine(directory, setting, max_num_seqs=24, kv_cache_memory_bytes=64 << 20, **options)
    session, rng = EngineSession(engine), random.Random(0)
    count, most = (4, 12) if setting.is_quick else (NUM_REQUESTS, MAX_TOKENS)
    prompts = random_prompts([rng.randint(1, 200) for _ in range(count)], engine.model_config.vocab_size)
    for index, prompt in enumerate(prompts):
        session.add(str(index), prompt, greedy(rng.randint(1, most), logprobs))
        session.run_on(rng.choice((0, 0, 1, 5)))
    answered = Run(session.finish(), isinstance(engine.runner.model, GraphedModel))
    engine.close()
    return answered


def check_graphs(record: Record, setting: Setting, model: SmallModel) -> None:
    """Compare the engine's modes. Steps are launched ahead only without logprobs."""
    directory, name = saved(model, setting.directory), model.architecture
    plain = answer(directory, setting, 2, enforce_eager=True, async_scheduling=False)
    replayed = answer(directory, setting, 2, enforce_eager=False, async_scheduling=False)
    compare_answers(record, f"{name}, replayed", replayed.answers, plain.answers)
    ahead = answer(directory, setting, None, enforce_eager=False, async_scheduling=True)
    compare_answers(record, f"{name}, replayed and launched ahead", ahead.answers, plain.answers)
    if setting.device.type == "cuda":
        is_right = replayed.is_replayed and not plain.is_replayed
        record.find(
            f"{name}, recorded", is_right, "decodes are CUDA graphs" if is_right else "not CUDA graphs: see the log"
        )


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    for model in SMALL_MODELS:
        if model.architecture in ARCHITECTURES[: 1 if setting.is_quick else None]:
            record.attempt(model.architecture, partial(check_graphs, record, setting, model))
