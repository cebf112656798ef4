"""Whether an adapter's matrices fit the model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from baton.engine.errors import InvalidAdapter
from baton.engine.layers.linear_source import LinearSource

EMBEDDING = "embed_tokens"
EXPERT = re.compile(r"\.experts\.(\d{1,9})\.")


@dataclass(frozen=True, slots=True)
class ModuleShape:
    """Sizes of a module that an adapter changes."""

    in_features: int
    out_features: int


@dataclass(frozen=True, slots=True)
class ChangeableModules:
    """Modules of a model that adapters can change, on all ranks."""

    shapes: Mapping[str, ModuleShape]
    num_experts: int  # of a layer
    absorbed: frozenset[str]  # those that are applied to queries and attended latents; see HeadMatrices
    unchanged: Sequence[str]  # beginnings of the names of modules that are not of the language model


def shapes_of(sources: Iterable[LinearSource]) -> dict[str, ModuleShape]:
    """Return the sizes of all modules of some layers."""
    return {
        part.name: ModuleShape(each.in_features, part.out_features)
        for each in sources
        for part in (*each.parts, *each.fused)
    }


def check_fits(source: str, base_model: str, modules: Mapping[str, ModuleShape], known: ChangeableModules) -> None:
    """Raise InvalidAdapter if an adapter changes a module that the model lacks, or one of another shape.

    source: of the adapter; base_model: that its files name; known: the model's modules.
    """
    unknown = [name for name in modules if name not in known.shapes]
    if unknown:
        raise InvalidAdapter(f"{source}: {_reason(unknown, known)}")
    for name, found in modules.items():
        wanted = known.shapes[name]
        if found != wanted:
            named = f", probably {base_model}" if base_model else ""
            raise InvalidAdapter(
                f"{source}: the matrices of {name} are for {found.in_features} inputs and {found.out_features} "
                f"outputs, but the model has {wanted.in_features} and {wanted.out_features}: the adapter was trained "
                f"on another model{named}"
            )


def _reason(unknown: Sequence[str], known: ChangeableModules) -> str:
    name, more = unknown[0], f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    expert = EXPERT.search(name)
    if expert is not None and known.num_experts and int(expert[1]) >= known.num_experts:
        return f"{name}{more} does not exist: the model's layers have the experts 0 to {known.num_experts - 1}"
    if name.startswith(tuple(known.unchanged)):
        return (
            f"{name}{more} is not of the language model, and cannot be changed; train with exclude_modules, or with "
            "target_modules of the language model alone"
        )
    suffixes = ", ".join(sorted({each.rpartition(".")[2] for each in known.shapes}))
    return f"the model has no layer {name}{more} that can be changed; those that can be are {suffixes}"
