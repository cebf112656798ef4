"""FP8 on the device: tokens and products of few tokens compared with torch's, weights and KV with a CPU in fp32."""

from functools import partial

import torch

from benchmarks.gpu.numerics.fp8_checkpoint import BLOCKS, ROWS, quantised
from benchmarks.gpu.numerics.fp8_products import check_products
from benchmarks.gpu.numerics.fp8_tokens import check_tokens
from benchmarks.gpu.numerics.models import Tolerance, check_model
from benchmarks.gpu.small_models import SMALL_MODELS, saved
from benchmarks.gpu.stage import Record, Setting

WEIGHTS = ("qwen3", "llama3", "qwen3-moe", "deepseek-v3")
CACHES = ("qwen3", "llama3", "qwen2")
# The device also rounds activations to e4m3 before each GEMM, an error of 3% per element; the CPU does not. In a CPU
# simulation of this, logits of dense models differ by 10%, and MoE models route every fifth token differently.
OF_WEIGHTS = Tolerance(cosine=0.98, margin=0.5, sparse_share=0.6)
# Both sides round keys and values, but a bf16 value may round to the neighbour of its fp32 counterpart.
OF_CACHES = Tolerance(cosine=0.995, margin=0.4, sparse_share=0.9)


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    record.attempt("tokens", lambda: check_tokens(record, setting))
    record.attempt("few-token products", lambda: check_products(record, setting))
    models = {model.architecture: model for model in SMALL_MODELS}
    for stored in (BLOCKS, ROWS):
        for name in WEIGHTS[: 1 if setting.is_quick else None]:
            case = f"{name}, weights in FP8, {stored.name}"
            directory = quantised(saved(models[name], setting.directory), stored)
            check = partial(check_model, record, setting, models[name], directory, case=case, tolerance=OF_WEIGHTS)
            record.attempt(case, check)
    for name in CACHES[: 1 if setting.is_quick else None]:
        case, directory = f"{name}, KV in FP8", saved(models[name], setting.directory)
        check = partial(check_model, record, setting, models[name], directory, case=case, tolerance=OF_CACHES)
        record.attempt(case, partial(check, kv_dtype="fp8"))
