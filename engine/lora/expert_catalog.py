"""Names under which adapters have the experts of a model: one module each, or one parameter for all of a layer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from baton.engine.families.tensor_names import ExpertNames
from baton.engine.layers.expert_source import FUSED, ExpertSource
from baton.engine.lora.fit import ModuleShape, shapes_of

MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class StackedParameter:
    """A parameter with one matrix of each expert of a layer, as in transformers 5."""

    name: str  # its last part
    source: ExpertSource
    projection: str  # of an expert that the matrices are, such as gate_up_proj

    @property
    def num_experts(self) -> int:
        """Number of experts of the layer, on all ranks."""
        return self.source.config.num_experts

    @property
    def shape(self) -> ModuleShape:
        """Sizes of the matrix of one expert."""
        size, hidden = self.source.config.intermediate_size, self.source.hidden_size
        if self.projection == self.source.names.down:
            return ModuleShape(size, hidden)
        return ModuleShape(hidden, 2 * size if self.projection == FUSED else size)

    def module(self, expert: int) -> str:
        """Return the name of an expert's matrix."""
        return self.source.module(expert, self.projection)

    def separate_modules(self) -> Iterator[str]:
        """Yield the modules that an adapter may have instead."""
        for expert in range(self.num_experts):
            for name in (*self.source.firsts, FUSED) if self.projection == FUSED else (self.projection,):
                yield self.source.module(expert, name)


@dataclass(frozen=True, slots=True)
class ExpertCatalog:
    """All names of a model's experts, under those of its modules."""

    shapes: Mapping[str, ModuleShape]  # of each expert's modules
    aliases: Mapping[str, str]  # modules by the names that another version of transformers gives them
    stacked: Mapping[str, Sequence[StackedParameter]]  # by the module that has them, in its order
    firsts: Sequence[str] = ()  # names of the projections of an expert's input
    num_experts: int = 0
    are_shared: bool = False  # by several workers: adapters cannot change them

    @classmethod
    def of(cls, sources: Sequence[ExpertSource], alternatives: Sequence[ExpertNames]) -> "ExpertCatalog":
        """Return the names of all layers. alternatives: those that the family's layers may have."""
        shapes: dict[str, ModuleShape] = {}
        aliases: dict[str, str] = {}
        stacked: dict[str, list[StackedParameter]] = {}
        for source in sources:
            shapes |= shapes_of(source.all_linears())
            for names in alternatives:
                aliases |= (pair for pair in _aliases(source, names) if pair[0] != pair[1])
                for module, parameter in _parameters(source, names):
                    stacked.setdefault(module, []).append(parameter)
        num_experts = max((each.config.num_experts for each in sources), default=0)
        are_shared = any(each.here is None for each in sources)
        return cls(shapes, aliases, stacked, sources[0].firsts if sources else (), num_experts, are_shared)


def _block(source: ExpertSource, names: ExpertNames) -> str:
    """Return the block of a layer with other names."""
    layer = source.prefix.removesuffix(f".{source.names.block}") if source.names.block else source.prefix
    return f"{layer}.{names.block}" if names.block else layer


def _aliases(source: ExpertSource, names: ExpertNames) -> Iterator[tuple[str, str]]:
    block, ours = _block(source, names), source.names
    for expert in range(source.config.num_experts):
        for old, new in ((names.gate, ours.gate), (names.up, ours.up), (names.down, ours.down)):
            yield f"{block}.{names.experts}.{expert}.{old}", source.module(expert, new)
    pairs = [(names.router, ours.router), (names.shared_gate, ours.shared_gate)]
    if names.shared_gate_up is ours.shared_gate_up is None:
        pairs += [(f"{names.shared}.{each}", f"{ours.shared}.{each}") for each in MLP]
    for old, new in pairs:
        yield f"{block}.{old.removesuffix('.weight')}", f"{source.prefix}.{new.removesuffix('.weight')}"


def _parameters(source: ExpertSource, names: ExpertNames) -> Iterator[tuple[str, StackedParameter]]:
    first = (names.all_gate_up, FUSED)
    if source.config.activation == "relu2":
        first = (f"{names.experts}.{names.up}", source.names.up)
    for name, projection in (first, (names.all_down, source.names.down)):
        module, _, parameter = f"{_block(source, names)}.{name}".rpartition(".")
        yield module, StackedParameter(parameter, source, projection)
