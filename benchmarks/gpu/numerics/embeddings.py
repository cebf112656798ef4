"""Embeddings and prompt logprobs on the device compared with a CPU in fp32, in batches with requests that generate."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from baton.engine.pooling.config import KINDS, PoolingParams
from benchmarks.gpu.engine_session import greedy, random_prompts, request, start_engine
from benchmarks.gpu.numerics.models import BF16
from benchmarks.gpu.small_models import SMALL_MODELS, SmallModel, saved
from benchmarks.gpu.stage import Record, Setting

ARCHITECTURES = ("qwen3", "llama3", "gemma3")
PROMPT_LENS = (1, 5, 33, 70, 150, 16, 17, 200)
NUM_TOP = 2  # prompt logprobs of each position
TOLERANCE = 0.1  # of a prompt logprob
ENGINE = {"max_num_batched_tokens": 64, "kv_cache_memory_bytes": 64 << 20}


@dataclass(frozen=True, slots=True)
class Prompts:
    """Results for prompts: embeddings [hidden] by prompt, and the logprob of each token but the first by prompt."""

    embeddings: Mapping[int, Tensor]
    logprobs: Mapping[int, list[float]]


def computed(model: SmallModel, setting: Setting, kind: str) -> Prompts:
    """Embed all prompts, and generate for all of them with prompt logprobs, at once."""
    engine = start_engine(saved(model, setting.directory), setting, pooling=kind, **ENGINE)
    prompts = random_prompts(PROMPT_LENS, engine.model_config.vocab_size)
    sampling = greedy(12)
    for index, prompt in enumerate(prompts):
        engine.add(request(f"embed {index}", prompt, sampling, pooling=PoolingParams()))
        with_logprobs = greedy(12, prompt_logprobs=NUM_TOP)
        engine.add(request(f"generate {index}", prompt, with_logprobs))
    embeddings: dict[int, Tensor] = {}
    logprobs: dict[int, list[float]] = {index: [] for index in range(len(prompts))}
    while engine.has_work:
        for output in engine.run(engine.schedule()).outputs:
            index = int(output.request_id.split()[1])
            if output.embedding is not None:
                embeddings[index] = torch.from_numpy(np.frombuffer(output.embedding, dtype="<f4").copy())
            logprobs[index] += [each.chosen.logprob for each in output.prompt_logprobs]
    engine.check_integrity()
    engine.close()
    return Prompts(embeddings, logprobs)


def check_prompts(record: Record, setting: Setting, model: SmallModel, kind: str) -> None:
    """Compare one kind of pooling."""
    expected = computed(model, Setting(torch.device("cpu"), setting.is_quick, setting.directory), kind)
    ours, case = computed(model, setting, kind), f"{model.architecture}, {kind}"
    cosines = [
        float(torch.cosine_similarity(ours.embeddings[index], each, dim=0))
        for index, each in expected.embeddings.items()
    ]
    is_right = len(cosines) == len(PROMPT_LENS) and min(cosines) > BF16.cosine
    record.find(f"{case}: embeddings", is_right, f"cosine {min(cosines):.6f} of the worst of {len(cosines)}")
    pairs = [pair for index, each in expected.logprobs.items() for pair in zip(ours.logprobs[index], each, strict=True)]
    largest = max(abs(mine - theirs) for mine, theirs in pairs)
    is_whole = len(pairs) == sum(PROMPT_LENS) - len(PROMPT_LENS)
    record.find(
        f"{case}: prompt logprobs", is_whole and largest < TOLERANCE, f"{len(pairs)} differ by up to {largest:.2g}"
    )


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    models = {model.architecture: model for model in SMALL_MODELS}
    for name, kind in list(zip(ARCHITECTURES, KINDS, strict=True))[: 1 if setting.is_quick else None]:
        record.attempt(f"{name}, {kind}", partial(check_prompts, record, setting, models[name], kind))
