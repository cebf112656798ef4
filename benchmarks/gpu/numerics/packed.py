"""Packed weights on the device compared with a CPU that reads the same files in fp32; and float16."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.numerics.models import Tolerance, check_model
from benchmarks.gpu.small_models import SmallModel, saved
from benchmarks.gpu.stage import Record, Setting
from benchmarks.quantization.formats import FORMATS, Format

SIZES = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.06, "head_dim": 128}
DENSE = SmallModel("qwen3", SIZES)
SPARSE = SmallModel("qwen3-moe", SIZES | {"moe_intermediate_size": 256}, is_sparse=True)
OF_EXPERTS = ("GPTQ, 4 bits", "GGUF Q4_K", "MXFP4")  # formats that are also checked with experts
# Both sides multiply the same numbers; bf16 rounds them and the activations.
BF16 = Tolerance(cosine=0.999, margin=0.2, sparse_share=0.85)


def formats() -> list[Format]:
    """Return the formats whose weights stay packed on a GPU."""
    return [each for each in FORMATS if each.on_gpus.startswith("dequantised")]


def check_format(record: Record, setting: Setting, model: SmallModel, fmt: Format) -> None:
    """Compare a model in one format."""
    case = f"{model.architecture}, {fmt.name}"
    with TemporaryDirectory(dir=setting.directory) as new:
        if fmt.write is None:  # both sides must round the same numbers at load
            directory = saved(model, setting.directory)
        else:
            directory = fmt.write(saved(model, setting.directory, torch.float32), Path(new))
        check_model(record, setting, model, directory, case=case, quantization=fmt.quantization, tolerance=BF16)


def check_float16(record: Record, setting: Setting) -> None:
    """Compare a model in float16, which only a GPU computes in."""
    directory = saved(DENSE, setting.directory, torch.float32)
    check_model(record, setting, DENSE, directory, case=f"{DENSE.architecture} in float16", dtype="float16")


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    setting = replace(setting, directory=setting.directory / "packed")  # its models have other sizes than `models`'
    setting.directory.mkdir(exist_ok=True)
    for model in (DENSE, SPARSE):
        chosen = [fmt for fmt in formats() if model is DENSE or fmt.name in OF_EXPERTS]
        for fmt in chosen[:: 3 if setting.is_quick else 1]:
            check = partial(check_format, record, setting, model, fmt)
            record.attempt(f"{model.architecture}, {fmt.name}", check)
    if setting.device.type == "cuda":
        record.attempt("float16", partial(check_float16, record, setting))
