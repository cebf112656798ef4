"""Reader of quantization_config for the packed formats of compressed-tensors. No torch."""

import re

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.packed.scheme import (
    ModuleRule,
    PackedModules,
    PackedScheme,
    checked_pattern,
    group_size,
)
from baton.engine.errors import UnsupportedModel

REGEX = "re:"
CLASSES = ("Linear", "LinearBase")  # targets that mean all projections
BYTES = ("int-quantized", "naive-quantized")
FLOAT_GROUPS = {16: "nvfp4", 32: "mxfp4"}  # group sizes of 4-bit floats, and their layouts
SUPPORTED = "supported are FP8, integers of 4 and 8 bits, NVFP4 and MXFP4"


def read_compressed_scheme(group: JsonObject, stored_as: str) -> PackedScheme | None:
    """Return the scheme of a group of modules, None for FP8. Raises UnsupportedModel.

    stored_as: `format` of the whole checkpoint, which the group's own one replaces. How activations were quantised
    does not matter: they are not quantised here.
    """
    weights = group.inner("weights")
    if not weights.values:
        raise _unsupported(group, "a group without weights")
    stored_as = group.text("format", stored_as)
    kind, bits = weights.text("type", "int"), weights.integer("num_bits", 8)
    symmetric, strategy = weights.boolean("symmetric", True), weights.text("strategy", "tensor")
    if kind == "float" and bits == 8:
        return None
    if kind == "float" and bits == 4 and symmetric and strategy in ("group", "tensor_group"):
        layout = FLOAT_GROUPS.get(weights.integer("group_size"))
        if layout is not None:
            return PackedScheme(layout=layout, group_size=weights.integer("group_size"), has_zeros=False)
    if kind != "int" or bits not in (4, 8):
        raise _unsupported(weights, f"{bits} bits of type {shown(kind)}")
    if strategy not in ("tensor", "channel", "group"):
        raise _unsupported(weights, f"strategy {shown(strategy)}")
    size = group_size(weights, "group_size") if strategy == "group" else None
    if strategy == "group" and size is None:
        raise _unsupported(weights, "strategy 'group' without a group_size")
    if stored_as in BYTES and bits != 8:
        raise _unsupported(weights, f"{bits} bits in format {shown(stored_as)}")
    return PackedScheme(
        layout="bytes" if stored_as in BYTES else "words",
        bits=bits,
        group_size=size,
        has_zeros=not symmetric,
        has_order="actorder" in weights,
    )


def read_compressed(described: JsonObject) -> PackedModules:
    """Read the groups of modules and the ignored ones. Raises UnsupportedModel or InvalidCheckpoint."""
    stored_as = described.text("format", "unknown")
    groups = described.inner("config_groups")
    default: PackedScheme | None = None
    named: list[ModuleRule] = []
    matched: list[ModuleRule] = []
    for name in groups.values:
        group = groups.inner(name)
        scheme = read_compressed_scheme(group, stored_as)
        for target in group.texts("targets") or ["Linear"]:
            if target in CLASSES:
                default = scheme
            else:
                (matched if target.startswith(REGEX) else named).append(_rule(target, scheme, group))
    ignored = [_rule(target, None, described) for target in described.texts("ignore")]
    return PackedModules(default, (*ignored, *named, *matched))


def _rule(target: str, scheme: PackedScheme | None, source: JsonObject) -> ModuleRule:
    """Return a rule for a module's name, or, after `re:`, for names that begin with a match."""
    if not target.startswith(REGEX):
        return ModuleRule(re.escape(target), scheme)
    return ModuleRule(checked_pattern(target.removeprefix(REGEX), source.source), scheme)


def _unsupported(described: JsonObject, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{described.source}: {what} is not supported; {SUPPORTED}")
