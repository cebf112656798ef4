"""Every model family on the device in its dtype compared with the same checkpoint on a CPU in fp32."""

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.gpu.numerics.closeness import Closeness
from benchmarks.gpu.numerics.model_session import ModelSession
from benchmarks.gpu.small_models import SMALL_MODELS, SmallModel, saved
from benchmarks.gpu.stage import Record, Setting

CPU = torch.device("cpu")
PROMPTS = {"short": 5, "long": 181, "chunked": 150}
FIRST_CHUNK = 70  # of the last prompt, prefilled one step earlier
NUM_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Tolerated effect of rounding on a model."""

    cosine: float  # above which a token's logits count as close
    margin: float  # lead, as a fraction of the logits' spread, above which the top token must match
    sparse_share: float  # fraction of the tokens that must match in MoE models; all in others

    def share(self, model: SmallModel) -> float:
        """Return the fraction of the tokens that must match."""
        return self.sparse_share if model.is_sparse else 1.0


# bf16's roundings change logits by 1% to 2% of their spread, through a few layers.
BF16 = Tolerance(cosine=0.999, margin=0.2, sparse_share=0.9)


def forced(session: ModelSession, prompts: dict[str, list[int]], outputs: list[dict[str, int]] | None) -> list[Tensor]:
    """Return the logits of each step, [num_sequences, vocab]: chunked and batched prefill, then decode."""
    names = list(prompts)
    session.step({"chunked": prompts["chunked"][:FIRST_CHUNK]})
    new_tokens = prompts | {"chunked": prompts["chunked"][FIRST_CHUNK:]}
    steps: list[Tensor] = []
    for step in range(NUM_TOKENS):
        logits = session.step(new_tokens)
        steps.append(torch.stack([logits[name] for name in names]))
        chosen = {name: int(logits[name].argmax()) for name in names}
        new_tokens = {name: [token] for name, token in (outputs[step] if outputs else chosen).items()}
    return steps


def compare_models(
    record: Record, name: str, ours: list[Tensor], reference: list[Tensor], share: float, tolerance: Tolerance = BF16
) -> None:
    """Add findings on logits and greedy tokens."""
    results, expected = torch.cat(ours), torch.cat(reference)
    cosines = torch.cosine_similarity(results.double(), expected.double(), dim=-1)
    is_near = float((cosines > tolerance.cosine).double().mean())
    whole = Closeness.of(results, expected)
    record.find(
        f"{name}: logits",
        is_near >= share and whole.cosine > tolerance.cosine - (1 - share) / 10 and bool(results.isfinite().all()),
        f"cosine {whole.cosine:.6f} of all, {float(cosines.min()):.6f} of the worst token, "
        f"{is_near:.1%} of tokens above {tolerance.cosine}, error {whole.error:.2g}",
    )
    best = expected.topk(2, dim=-1).values
    is_clear = (best[:, 0] - best[:, 1]) > tolerance.margin * expected.std(dim=-1)
    is_same = results.argmax(-1) == expected.argmax(-1)
    same = float(is_same[is_clear].double().mean()) if bool(is_clear.any()) else 0.0
    record.find(
        f"{name}: greedy tokens",
        same >= share and bool(is_clear.any()),
        f"{same:.1%} of {int(is_clear.sum())} tokens with a clear margin are the same, "
        f"{float(is_same.double().mean()):.1%} of all {len(is_same)}",
    )


def check_model(
    record: Record,
    setting: Setting,
    model: SmallModel,
    directory: Path,
    *,
    case: str = "",
    kv_dtype: str = "auto",
    dtype: str | None = None,
    quantization: str | None = None,
    tolerance: Tolerance = BF16,
) -> None:
    """Compare a model family's logits and greedy tokens. dtype: the device's, default is the setting's."""
    rng = random.Random(0)
    reference = ModelSession(directory, CPU, "float32", kv_dtype, quantization=quantization)
    prompts = {
        name: [rng.randrange(3, reference.config.vocab_size) for _ in range(length)] for name, length in PROMPTS.items()
    }
    expected = forced(reference, prompts, None)
    outputs = [dict(zip(prompts, step.argmax(-1).tolist(), strict=True)) for step in expected]
    session = ModelSession(directory, setting.device, dtype or setting.dtype_name, kv_dtype, 32, quantization)
    if session.config.dtype != (wanted := dtype or setting.dtype_name):
        record.find(f"{case or model.architecture}: dtype", False, f"{session.config.dtype} instead of {wanted}")
    ours = forced(session, prompts, outputs)
    compare_models(record, case or model.architecture, ours, expected, tolerance.share(model), tolerance)


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    for model in SMALL_MODELS[::4] if setting.is_quick else SMALL_MODELS:
        check = partial(check_model, record, setting, model, saved(model, setting.directory))
        record.attempt(model.architecture, check)
