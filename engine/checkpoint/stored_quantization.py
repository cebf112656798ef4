"""Quantization of stored matrices, as described by a checkpoint's config.json; no torch."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.packed.compressed_config import read_compressed, read_compressed_scheme
from baton.engine.checkpoint.packed.gptq_config import read_auto_round, read_awq, read_gptq
from baton.engine.checkpoint.packed.scheme import NOT_PACKED, PackedModules
from baton.engine.checkpoint.tensor_prefixes import Prefixes
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

SUPPORTED = "supported are gptq, awq, auto-round, compressed-tensors, mxfp4 of GPT-OSS, and fp8 in e4m3"
SCALE_SUFFIXES = ("_scale_inv", "_scale")  # appended to the matrix's name; both mean a factor to multiply with
# Calibrated scales of activations: unused, since activations are quantised with dynamic scales.
_UNUSED = ("input_scale", "input_zero_point", "input_global_scale", "activation_scale", "output_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredQuantization:
    """Scaling of FP8 (e4m3) matrices, and layout of packed ones; a tensor is in FP8 if its dtype is."""

    method: str = "fp8"  # quant_method
    packed: PackedModules = NOT_PACKED
    block: tuple[int, int] | None = None  # rows and columns that share a scale; None: per row, or per matrix
    quantises_tokens: bool = True  # activations are quantised to FP8 too

    @property
    def name(self) -> str:
        """Name of the format, for people."""
        if self.method == "fp8":
            return "FP8"
        if self.method in ("gguf", "mxfp4"):
            return self.method.upper()
        bits = f"{self.packed.default.bits} bits, " if self.packed.default is not None else ""
        return f"{bits}{self.method}"

    def is_unused(self, tensor: str) -> bool:
        """Return whether a tensor of this name belongs to the quantization but is not used by the engine."""
        return tensor.endswith(_UNUSED)


def read_stored_quantization(config: JsonObject, prefixes: Prefixes = ()) -> StoredQuantization | None:
    """Read quantization_config; None if there is none. Raises UnsupportedModel for unsupported formats.

    prefixes: of the language model's parts in the files, by whose names the config may mean them.
    """
    if "quantization_config" not in config:
        return None
    described = config.inner("quantization_config")
    method = described.text("quant_method", "unknown")
    reader = _READERS.get(method)
    if reader is None:
        raise _unsupported(described, f"quant_method {shown(method)}")
    found = reader(described)
    return replace(found, packed=replace(found.packed, prefixes=prefixes))


def _fp8(described: JsonObject) -> StoredQuantization:
    """Read the format of DeepSeek-V3 and of transformers' fine-grained FP8; without blocks, one scale per matrix."""
    _only(described, "fmt", "e4m3", ("e4m3", "float8_e4m3fn"))
    _only(described, "activation_scheme", "dynamic", ("dynamic", "static"))
    return StoredQuantization(block=_block(described, "weight_block_size"))


def _compressed_tensors(described: JsonObject) -> StoredQuantization:
    if described.inner("sparsity_config").text("format", "dense") != "dense":
        raise _unsupported(described, "sparsity_config")
    if described.inner("transform_config").inner("config_groups").values:
        raise _unsupported(described, "transform_config")
    groups = described.inner("config_groups")
    if not groups.values:
        raise _unsupported(described, "no config_groups")
    modules = read_compressed(described)
    schemes = {name: read_compressed_scheme(groups.inner(name), "unknown") for name in groups.values}
    read = {_fp8_group(groups.inner(name)) for name, scheme in schemes.items() if scheme is None}
    if len({each.block for each in read}) > 1:
        raise _unsupported(groups, "a scale per block in one group but not in another")
    return StoredQuantization(
        method="compressed-tensors" if modules.has_any else "fp8",
        packed=modules if modules.has_any else NOT_PACKED,
        block=next(iter(read)).block if read else None,
        quantises_tokens=bool(read) and all(each.quantises_tokens for each in read),
    )


def _fp8_group(group: JsonObject) -> StoredQuantization:
    if not _is_fp8(group.inner("weights")):
        raise _unsupported(group, "FP8 that is not symmetric")
    weights, tokens = group.inner("weights"), group.inner("input_activations")
    _only(weights, "strategy", "tensor", ("tensor", "channel", "block"))
    if tokens.values and not _is_fp8(tokens):
        raise _unsupported(group, "an input_activations format other than symmetric FP8")
    if "output_activations" in group:
        raise _unsupported(group, "output_activations")
    has_blocks = weights.text("strategy", "tensor") == "block"
    block = _block(weights, "block_structure") if has_blocks else None
    if has_blocks and block is None:
        raise _unsupported(group, "strategy 'block' without a block_structure")
    return StoredQuantization(block=block, quantises_tokens=bool(tokens.values))


def _is_fp8(scheme: JsonObject) -> bool:
    is_float = scheme.text("type", "int") == "float" and scheme.integer("num_bits", 8) == 8
    return is_float and scheme.boolean("symmetric", True)


def _block(described: JsonObject, key: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block; None if there are no blocks."""
    sizes = described.integers(key)
    if not sizes:
        return None
    if len(sizes) != 2 or min(sizes) < 1:
        raise InvalidCheckpoint(f"{described.source}: {key} must be two whole numbers above 0, not {shown(sizes)}")
    return sizes[0], sizes[1]


def _only(described: JsonObject, key: str, default: str, supported: tuple[str, ...]) -> None:
    if (value := described.text(key, default)) not in supported:
        raise _unsupported(described, f"{key} {shown(value)}")


def _unsupported(described: JsonObject, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{described.source}: {what} is not supported; {SUPPORTED}")


def _packed(method: str, reader: Callable[[JsonObject], PackedModules]) -> Callable[[JsonObject], StoredQuantization]:
    return lambda described: StoredQuantization(method=method, packed=reader(described), quantises_tokens=False)


_READERS: dict[str, Callable[[JsonObject], StoredQuantization]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "gptq": _packed("gptq", read_gptq),
    "awq": _packed("awq", read_awq),
    "auto-round": _packed("auto-round", read_auto_round),
    "intel/auto-round": _packed("auto-round", read_auto_round),
    "mxfp4": _packed("mxfp4", lambda described: NOT_PACKED),  # GPT-OSS: packed experts have tensors of their own names
    "gguf": _packed("gguf", lambda described: NOT_PACKED),  # each tensor's type is in the file
}
METHODS = tuple(_READERS)  # of quant_method
