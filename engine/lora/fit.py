"""Whether an adapter's matrices fit the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.engine.errors import InvalidAdapter
from baton.engine.layers.linear_source import LinearSource

EMBEDDING = "embed_tokens"


@dataclass(frozen=True, slots=True)
class ModuleShape:
    """Sizes of a module that an adapter changes."""

    in_features: int
    out_features: int


def check_fits(
    source: str, base_model: str, modules: Mapping[str, ModuleShape], sources: Sequence[LinearSource]
) -> None:
    """Raise InvalidAdapter if an adapter changes a module that the model lacks, or one of another shape.

    source: of the adapter; base_model: that its files name.
    """
    known = {part.name: (each, part) for each in sources for part in each.parts}
    unknown = [name for name in modules if name not in known]
    if unknown:
        raise InvalidAdapter(f"{source}: {_reason(unknown, known)}")
    for name, found in modules.items():
        whole, part = known[name]
        if found != ModuleShape(whole.in_features, part.out_features):
            named = f", probably {base_model}" if base_model else ""
            raise InvalidAdapter(
                f"{source}: the matrices of {name} are for {found.in_features} inputs and {found.out_features} "
                f"outputs, but the model has {whole.in_features} and {part.out_features}: the adapter was trained on "
                f"another model{named}"
            )


def _reason(unknown: Sequence[str], known: Mapping[str, object]) -> str:
    name, more = unknown[0], f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    if ".experts." in name or "shared_expert" in name:
        return f"{name}{more} cannot be changed: experts have no adapters; target the attention's projections"
    suffixes = ", ".join(sorted({each.rpartition(".")[2] for each in known}))
    return f"the model has no layer {name}{more} that can be changed; those that can be are {suffixes}"
