"""Readers of quantization_config for GPTQ, AWQ and AutoRound. No torch."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.packed.scheme import (
    ModuleRule,
    PackedModules,
    PackedScheme,
    checked_pattern,
    containing,
    group_size,
)
from baton.engine.errors import UnsupportedModel

GPTQ_FORMATS = {"gptq": 1, "gptq_v2": 0}  # checkpoint_format: what is added to stored zero points
GPTQ_BITS = (4, 8)
AUTO_ROUND_PACKINGS = {"auto_round:auto_gptq": "gptq", "auto_round:gptq": "gptq", "auto_round:auto_awq": "awq"}
PLAIN_BITS = 16  # from here on, AutoRound means that a layer is not quantised


def read_gptq(described: JsonObject) -> PackedModules:
    """Read AutoGPTQ's and GPTQModel's config, with `dynamic` rules: `-:` excludes modules, `+:` changes some keys."""
    stored_as = described.text("checkpoint_format", described.text("format", "gptq"))  # two names of GPTQModel
    if stored_as not in GPTQ_FORMATS:
        raise _unsupported(described, "checkpoint_format", stored_as, GPTQ_FORMATS)
    default = PackedScheme(
        layout="gptq",
        bits=_bits(described, GPTQ_BITS),
        group_size=group_size(described, "group_size"),
        zero_offset=GPTQ_FORMATS[stored_as],
        has_order=True,  # g_idx is used whenever it is stored, whatever desc_act says
    )
    rules = []
    dynamic = described.inner("dynamic")
    for key in dynamic.values:
        sign, pattern = (key[0], key[2:]) if key[:2] in ("-:", "+:") else ("+", key)
        # The library matches the beginning of a name.
        pattern = checked_pattern(pattern, dynamic.source)
        changed = None if sign == "-" else _changed(default, dynamic.inner(key), GPTQ_BITS)
        rules.append(ModuleRule(pattern, changed))
    return PackedModules(default, tuple(rules))


def read_awq(described: JsonObject) -> PackedModules:
    """Read AutoAWQ's config; `modules_to_not_convert` are parts of names."""
    if (version := described.text("version", "gemm").lower()) != "gemm":
        raise _unsupported(described, "version", version, ("gemm",))
    if not described.boolean("zero_point", True):
        raise _unsupported(described, "zero_point", False, ("true",))
    key = "w_bit" if "w_bit" in described else "bits"
    size_key = "q_group_size" if "q_group_size" in described else "group_size"
    default = PackedScheme(
        layout="awq",
        bits=_bits(described, (4,), key),
        group_size=group_size(described, size_key, 128),
    )
    excluded = described.texts("modules_to_not_convert")
    return PackedModules(default, tuple(ModuleRule(containing(name), None) for name in excluded))


def read_auto_round(described: JsonObject) -> PackedModules:
    """Read AutoRound's config in the packings of GPTQ and AWQ; `extra_config` changes keys of single modules."""
    packing = described.text("packing_format", "auto_round:auto_gptq")
    layout = AUTO_ROUND_PACKINGS.get(packing)
    if layout is None:
        raise _unsupported(described, "packing_format", packing, AUTO_ROUND_PACKINGS)
    if (kind := described.text("data_type", "int")) != "int":
        raise _unsupported(described, "data_type", kind, ("int",))
    possible = GPTQ_BITS if layout == "gptq" else (4,)
    default = PackedScheme(
        layout=layout,
        bits=_bits(described, possible),
        group_size=group_size(described, "group_size", 128),
        zero_offset=1 if layout == "gptq" else 0,
        has_order=layout == "gptq",
    )
    rules = []
    extra = described.inner("extra_config")
    for name in extra.values:
        pattern = checked_pattern(name, extra.source)
        own = extra.inner(name)
        is_plain = own.integer("bits", default.bits) >= PLAIN_BITS
        rules.append(ModuleRule(pattern, None if is_plain else _changed(default, own, possible)))
    excluded = described.texts("modules_to_not_convert")
    return PackedModules(default, (*rules, *(ModuleRule(containing(name), None) for name in excluded)))


def _changed(default: PackedScheme, described: JsonObject, possible: tuple[int, ...]) -> PackedScheme:
    bits = _bits(described, possible) if "bits" in described else default.bits
    size = group_size(described, "group_size") if "group_size" in described else default.group_size
    return replace(default, bits=bits, group_size=size)


def _bits(described: JsonObject, possible: tuple[int, ...], key: str = "bits") -> int:
    if (bits := described.integer(key, 4)) not in possible:
        raise _unsupported(described, key, bits, possible)
    return bits


def _unsupported(described: JsonObject, key: str, value: object, supported: object) -> UnsupportedModel:
    listed = ", ".join(map(str, supported)) if isinstance(supported, dict | tuple) else str(supported)
    return UnsupportedModel(f"{described.source}: {key} {shown(value)} is not supported, only {listed}")
