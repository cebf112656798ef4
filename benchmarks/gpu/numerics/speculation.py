"""Requests with drafts on the device compared with the same engine without, and the drafts with those of a CPU.

Decodes are CUDA graphs, and steps are launched ahead, as a worker does. Every draft is verified, whatever it costs.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from baton.engine.engine import Engine
from baton.engine.execution.cuda_graphs import GraphedModel
from baton.engine.speculation.config import EAGLE3
from baton.settings.values import parse_json
from benchmarks.gpu.engine_session import Answer, EngineSession, greedy, random_prompts, request, start_engine
from benchmarks.gpu.numerics import families, mamba
from benchmarks.gpu.numerics.answers import compare_answers
from benchmarks.gpu.small_models import SMALL_MODELS, SmallModel, saved
from benchmarks.gpu.stage import Record, Setting
from tests.draft_checkpoints import copy_of, with_noise
from tests.draft_heads import random_head, with_mtp
from tests.unit.engine.speculation.heads.head_rig import drafts_of
from tests.unit.engine.speculation.speculation_rig import draft_always

DENSE = next(model for model in SMALL_MODELS if model.architecture == "llama3")
LATENT = next(model for model in SMALL_MODELS if model.architecture == "deepseek-v3")
PROMPT_LENS = (5, 30, 1, 16, 17, 24, 40, 8, 33, 12, 2, 28)  # with their outputs, within the heads' context of 64
NUM_TOKENS = 20
NUM_DRAFTED = 4  # tokens of a draft
NOISE = 0.05  # of the draft model's weights
HEAD_DIM = 64  # of the heads, so that FlashInfer's kernels serve them
MIN_SHARE = 0.75  # of the drafts that must be a CPU's, since weights are random: drafts follow from small margins
ENGINE = {"max_num_seqs": 16, "kv_cache_memory_bytes": 64 << 20}


@dataclass(frozen=True, slots=True)
class Method:
    """A way to draft: its name in `speculative_config`, and what makes the draft model or head of a model."""

    case: str
    name: str
    target: SmallModel = DENSE
    make: Callable[..., Path] | None = None  # from the model and a new directory; None: there is neither
    knows_outputs: bool = False  # drafts are the known outputs, some of them changed
    changes_target: bool = False  # the head is in the model's own checkpoint


METHODS = (
    Method("n-gram", "ngram"),
    Method("known outputs", "ngram", knows_outputs=True),
    Method("known outputs, latent attention", "ngram", LATENT, knows_outputs=True),
    Method("known outputs, delta nets", "ngram", families.HANDED_OVER, knows_outputs=True),
    Method("known outputs, Mamba-2", "ngram", mamba.HANDED_OVER, knows_outputs=True),
    Method("draft model", "draft_model", make=partial(with_noise, share=NOISE)),
    Method("EAGLE", "eagle", make=partial(random_head, method="eagle", head_dim=HEAD_DIM)),
    Method("EAGLE-3", EAGLE3, make=partial(random_head, method=EAGLE3, head_dim=HEAD_DIM, num_drafted=200)),
    Method("multi-token prediction", "mtp", LATENT, changes_target=True),
)
QUICK = tuple(
    each for each in METHODS if each.case in ("known outputs", "known outputs, delta nets", "draft model", "EAGLE-3")
)


def prompts_of(engine: Engine) -> list[list[int]]:
    """Return prompts, every other one of which repeats itself."""
    prompts = random_prompts(PROMPT_LENS, engine.model_config.vocab_size)
    return [each if index % 2 else (each[: len(each) // 3] * 3 or each) for index, each in enumerate(prompts)]


def answers_of(engine: Engine, logprobs: int | None = None) -> dict[str, Answer]:
    """Run all requests, which join step by step."""
    session = EngineSession(engine)
    for index, prompt in enumerate(prompts_of(engine)):
        session.add(str(index), prompt, greedy(NUM_TOKENS, logprobs))
        session.run_on(index % 3)
    return session.finish()


def first_drafts(engine: Engine) -> list[tuple[int, Sequence[int]]]:
    """Return the first output token of each prompt alone, and the draft after it. The requests do not end."""
    assert engine.speculator is not None
    wanted, engine.speculator._max_tokens = engine.speculator._max_tokens, 0  # drafts are asked for by hand
    found: list[tuple[int, Sequence[int]]] = []
    for index, prompt in enumerate(prompts_of(engine)):
        asked = request(f"draft {index}", prompt, greedy(NUM_TOKENS))
        engine.add(asked)
        while not asked.num_output_tokens:
            engine.run(engine.schedule())
        found.append((asked.token_ids[-1], drafts_of(engine, asked, NUM_DRAFTED)))
        engine.abort(asked.request_id)
    engine.speculator._max_tokens = wanted
    return found


def compare_drafts(
    record: Record, case: str, ours: list[tuple[int, Sequence[int]]], reference: list[tuple[int, Sequence[int]]]
) -> None:
    """Compare the first token of each draft after the same tokens."""
    pairs = [(mine[1], theirs[1]) for mine, theirs in zip(ours, reference, strict=True) if mine[0] == theirs[0]]
    same = sum(mine[0] == theirs[0] for mine, theirs in pairs)
    record.find(
        f"{case}: drafts",
        len(pairs) >= MIN_SHARE * len(reference) and same >= MIN_SHARE * len(pairs),
        f"{same} of {len(pairs)} drafts begin with the CPU's token; {len(reference) - len(pairs)} follow another token",
    )


def check_method(record: Record, setting: Setting, method: Method) -> None:
    """Compare the tokens of one method with those without drafts, and its drafts with a CPU's."""
    directory = setting.directory / "speculation"
    target = saved(method.target, directory)
    if method.changes_target:
        target = _made(directory / f"{target.name} mtp", lambda new: with_mtp(copy_of(target, new)))
    config: dict[str, Any] = {"method": method.name, "num_speculative_tokens": NUM_DRAFTED}
    if method.name == "ngram":
        config["prompt_lookup_min"] = 1
    make = method.make
    if make is not None:
        config["model"] = str(_made(directory / method.case, lambda new: make(target, directory=new)))
    options = ENGINE | {"speculative_config": parse_json(json.dumps(config))}
    plain = start_engine(target, setting, **ENGINE)
    expected = answers_of(plain, logprobs=2)
    plain.close()
    engine = start_engine(target, setting, **options)
    draft_always(engine, {name: each.token_ids for name, each in expected.items()} if method.knows_outputs else None)
    if method.name != "ngram":
        cpu = start_engine(target, Setting(torch.device("cpu"), setting.is_quick, setting.directory), **options)
        compare_drafts(record, method.case, first_drafts(engine), first_drafts(cpu))
        cpu.close()
    compare_answers(record, method.case, answers_of(engine), expected)
    if setting.device.type == "cuda" and engine.groups.states is None:  # steps of recurrent layers are not recorded
        is_graphed = isinstance(engine.runner.model, GraphedModel)
        record.find(f"{method.case}: recorded", is_graphed, "decodes without drafts are CUDA graphs, or see the log")
    counters = engine.stats().speculation
    engine.close()
    least = counters.num_draft_tokens // 4 if method.knows_outputs or method.name == "draft_model" else 0
    record.find(
        f"{method.case}: accepted",
        counters.num_draft_tokens > 0 and counters.num_accepted_tokens >= least,
        f"{counters.num_accepted_tokens} of {counters.num_draft_tokens} drafted tokens were right",
    )


def _made(directory: Path, make: Callable[[Path], Path]) -> Path:
    """Return a checkpoint's directory; make it if it is missing."""
    return directory if directory.exists() else make(directory)


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    for method in QUICK if setting.is_quick else METHODS:
        record.attempt(method.case, partial(check_method, record, setting, method))
