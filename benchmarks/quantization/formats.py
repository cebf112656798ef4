"""Quantizations of weights and of KV: how a checkpoint is written in each, and what computes with it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from tests.unit.engine.fp8_writer import FORMATS as FP8
from tests.unit.engine.fp8_writer import write_fp8
from tests.unit.engine.packed import compressed_writer
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.packed.packed_writer import FORMATS as PACKED
from tests.unit.engine.packed.packed_writer import PackedFormat, gptq_config, write_packed

GROUP = 128  # columns that share a scale, where the format has groups of any size

NATIVE = "decoded to fp32 in the core's cache, fp32 products"
DEQUANTISED = "dequantised to bf16 at each use, bf16 products"
PLAIN = "bf16 products"
Write = Callable[[Path, Path], Path]  # a checkpoint in fp32 and an empty directory -> the written checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One row of the table."""

    name: str
    on_cpus: str  # what computes, in which precision
    on_gpus: str
    write: Write | None = None  # None: the checkpoint in bf16
    quantization: str | None = None  # at load time
    kv_dtype: str = "auto"


def packed(fmt: PackedFormat) -> Write:
    """Return the writer of a format with packed matrices."""
    return lambda source, directory: write_packed(source, directory, fmt).packed


def fp8(name: str) -> Write:
    """Return the writer of a format with FP8 matrices."""
    return lambda source, directory: write_fp8(source, directory, FP8[name]).fp8


def gguf(kind: Type) -> Write:
    """Return the writer of a GGUF file; K types need rows of 256, so narrower matrices are in Q8_0, as in llama.cpp."""

    def write(source: Path, directory: Path) -> Path:
        narrow = {"ffn_down_exps": Type.Q8_0} if kind in (Type.Q4_K, Type.Q6_K) else {}
        written = write_gguf(source, directory, kind, others={"token_embd": Type.Q8_0} | narrow)
        return checkpoint_directory(written.file, directory / "cache")

    return write


AWQ = PackedFormat(PACKED["awq"].config | {"group_size": GROUP}, PACKED["awq"].pack, group=GROUP)
GPTQ = replace(PACKED["gptq"], config=gptq_config(group=GROUP), group=GROUP)
W4A16 = compressed_writer.of("pack-quantized", compressed_writer.ints(4, group=GROUP))
W8A16 = compressed_writer.of("pack-quantized", compressed_writer.ints(8))
MXFP4 = compressed_writer.FORMATS["mxfp4"]
NVFP4 = compressed_writer.FORMATS["nvfp4"]

FORMATS = (
    Format(name="bf16", on_cpus=PLAIN, on_gpus=PLAIN),
    Format(
        name="FP8, blocks of 128 x 128",
        on_cpus="dequantised to bf16 at load, bf16 products",
        on_gpus="FP8 products, fp32 sums",
        write=fp8("blocks"),
    ),
    Format(name="int8 at load", on_cpus="int8 products, int32 sums", on_gpus="not available", quantization="int8"),
    Format(name="int4 at load", on_cpus=NATIVE, on_gpus=DEQUANTISED, quantization="int4"),
    Format(name="GPTQ, 4 bits", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=packed(GPTQ)),
    Format(name="AWQ, 4 bits", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=packed(AWQ)),
    Format(name="compressed-tensors W4A16", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=packed(W4A16)),
    Format(name="compressed-tensors W8A16", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=packed(W8A16)),
    Format(name="GGUF Q8_0", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=gguf(Type.Q8_0)),
    Format(name="GGUF Q6_K", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=gguf(Type.Q6_K)),
    Format(name="GGUF Q4_K", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=gguf(Type.Q4_K)),
    Format(name="NVFP4", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=packed(NVFP4)),
    Format(name="MXFP4", on_cpus=NATIVE, on_gpus=DEQUANTISED, write=packed(MXFP4)),
    Format(
        name="KV in FP8",
        on_cpus="torch's attention, dequantised (slow)",
        on_gpus="FlashInfer, bf16 products",
        kv_dtype="fp8",
    ),
    Format(
        name="KV in int8",
        on_cpus="native attention: int8 or fp32 products of scores, bf16 or fp32 of values",
        on_gpus="not available",
        kv_dtype="int8",
    ),
    Format(
        name="KV in int4",
        on_cpus="native attention: unpacked to int8 in the core's cache, then as int8",
        on_gpus="not available",
        kv_dtype="int4",
    ),
)
