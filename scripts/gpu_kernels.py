"""Ahead-of-time compilation of the engine's FlashInfer kernels for one architecture, without a GPU.

    FLASHINFER_CUDA_ARCH_LIST=9.0a python scripts/gpu_kernels.py DIRECTORY [--only PART-OF-A-NAME] [--list]

Each kernel becomes a stripped DIRECTORY/NAME/NAME.so, the layout of FlashInfer's `data/aot`. Existing files are kept,
so that an interrupted run can continue; `scripts/gpu_bundle.sh` sets the rest of the environment.
"""

import argparse
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from flashinfer.jit import attention
from flashinfer.jit.activation import gen_act_and_mul_module
from flashinfer.jit.attention.modules import _gen_batch_prefill_primary_module
from flashinfer.jit.cascade import gen_cascade_module
from flashinfer.jit.norm import gen_norm_module
from flashinfer.jit.page import gen_page_module
from flashinfer.jit.rope import gen_rope_module

HEAD_DIMS = (128, 64, 256)  # the commonest first, as engine/attention/flashinfer.py has them
LATENT, ROTARY = 512, 64  # of MLA
BF16, FP16, FP8, INDEX = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32
PLAIN = (0, False, False)  # no rotation in the kernel, no sliding window, no cap on the logits
WINDOW, CAP, WINDOW_CAP = (0, True, False), (0, False, True), (0, True, True)
OTHERS = (
    *((BF16, BF16, width, WINDOW) for width in (64, 128, 256)),
    *((BF16, BF16, 256, flags) for flags in (CAP, WINDOW_CAP)),
    *((BF16, FP8, width, flags) for width, flags in ((64, WINDOW), (256, CAP), (256, WINDOW_CAP))),
    (FP16, FP16, 128, PLAIN),
)
# Instances that are never called: custom masks (2), several items in a sequence (3), and KV without blocks (ragged).
UNUSED = re.compile(r"prefill_(ragged_.*|paged_.*mask_[23])\.cu$")


def specs() -> Iterator[Any]:
    """Yield the kernels that the engine needs on Hopper: the fastest to compile first, bf16 before fp8."""
    yield gen_page_module()
    yield gen_cascade_module()
    yield gen_norm_module()
    for activation in ("silu", "gelu_tanh"):
        yield gen_act_and_mul_module(activation)
    yield gen_rope_module()
    for cached in (BF16, FP8):
        types = (BF16, cached, BF16, INDEX)
        for width in HEAD_DIMS:
            yield attention.gen_batch_decode_module(*types, width, width, *PLAIN)
        for width in HEAD_DIMS:  # decodes on tensor cores, and with fp8 KV prompts too
            yield _gen_batch_prefill_primary_module("fa2", *types, width, width, *PLAIN, False)
    for backend in ("fa3", "fa2"):  # the second serves where the first refuses
        yield attention.gen_batch_mla_module(backend, BF16, BF16, BF16, INDEX, LATENT, ROTARY, False)
    for width in HEAD_DIMS:
        yield attention.gen_batch_prefill_module("fa3", BF16, BF16, BF16, INDEX, width, width, *PLAIN, False)
    for dtype, cached, width, flags in OTHERS:
        types, sizes = (dtype, cached, dtype, INDEX), (width, width, *flags)
        yield attention.gen_batch_decode_module(*types, *sizes)
        yield _gen_batch_prefill_primary_module("fa2", *types, *sizes, False)
        if cached == dtype:
            yield attention.gen_batch_prefill_module("fa3", *types, *sizes, False)


def compile_one(spec: Any, directory: Path) -> None:
    """Compile and strip a kernel, and move it into place atomically.

    Its unused instances are left undefined, which the loader tolerates because it binds functions when they are called.
    """
    spec.sources = [source for source in spec.sources if not UNUSED.search(source.name)]
    spec.extra_ldflags = [*(spec.extra_ldflags or ()), "-Wl,-z,lazy"]
    spec.build()
    target = directory / spec.name / f"{spec.name}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    shutil.copyfile(spec.jit_library_path, unfinished)
    subprocess.run(["strip", "--strip-unneeded", str(unfinished)], check=True)
    os.replace(unfinished, target)


def main() -> None:
    """Compile missing kernels, and print the time and size of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", help="only kernels whose name contains this")
    parser.add_argument("--list", action="store_true", help="list the kernels and exit")
    arguments = parser.parse_args()
    for spec in specs():
        target = arguments.directory / spec.name / f"{spec.name}.so"
        if arguments.only not in spec.name:
            continue
        if arguments.list or target.exists():
            print(f"{'is there' if target.exists() else 'is missing'}: {spec.name}", flush=True)
            continue
        started_s = time.monotonic()
        compile_one(spec, arguments.directory)
        seconds, size = time.monotonic() - started_s, target.stat().st_size
        print(f"compiled in {seconds:.0f} s, {size / 2**20:.1f} MiB: {spec.name}", flush=True)


if __name__ == "__main__":
    main()
