"""Tensors of an adapter that change routed experts.

PEFT's `target_parameters` have the matrices of all experts in two tensors, `lora_A` [num_experts * rank, inputs] and
`lora_B` [outputs, rank * num_experts], with the rank outside of the experts in the second one. Two parameters of one
module are in nested wrappers: the last one has the module's name, the one in front of it `.base_layer` in addition.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from baton.engine.checkpoint.json_object import shown
from baton.engine.errors import InvalidAdapter
from baton.engine.layers.expert_source import FUSED
from baton.engine.lora.adapter_tensors import ModuleTensors
from baton.engine.lora.expert_catalog import ExpertCatalog, StackedParameter
from baton.engine.lora.fit import ModuleShape
from baton.engine.lora.peft_config import PeftConfig

INNER = ".base_layer"


@dataclass(frozen=True, slots=True)
class StackedTensors:
    """Tensors with the matrices of all experts of a layer."""

    parameter: StackedParameter
    tensors: ModuleTensors
    is_transposed: bool  # A is applied to the outputs, and B to the inputs, as by PEFT in front of 0.19.1

    @classmethod
    def of(
        cls, source: str, parameter: StackedParameter, tensors: ModuleTensors, config: PeftConfig
    ) -> "StackedTensors":
        """Return the tensors of a parameter. Raises InvalidAdapter if they do not fit it."""
        rank, count, shape = config.rank_of(tensors.name), parameter.num_experts, parameter.shape
        a, b = tensors.a.shape, tensors.b.shape
        if a[0] == b[1] == rank * count:
            found = ModuleShape(a[1], b[0])
            if found == shape and shape.in_features == shape.out_features:
                is_old = config.transposes_parameters and not parameter.source.names.all_transposed
                return cls(parameter, tensors, is_transposed=is_old)
            if found in (shape, ModuleShape(shape.out_features, shape.in_features)):
                return cls(parameter, tensors, is_transposed=found != shape)
        raise InvalidAdapter(
            f"{source}: the matrices of {tensors.name} are {list(a)} and {list(b)}, but must be "
            f"{[rank * count, shape.in_features]} and {[shape.out_features, rank * count]}: the config gives it rank "
            f"{rank}, and the model has {count} experts of {shape.in_features} inputs and {shape.out_features} outputs"
        )

    def split(self, a: Tensor, b: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the name of each expert's matrix, and views of its matrices: [rank, inputs] and [outputs, rank]."""
        count = self.parameter.num_experts
        for expert, (first, second) in enumerate(zip(a.chunk(count), b.view(len(b), -1, count).unbind(2), strict=True)):
            if self.is_transposed:
                first, second = second.t(), first.t()
            yield self.parameter.module(expert), first, second


@dataclass(frozen=True, slots=True)
class AdapterModules:
    """Tensors of an adapter, under the names of the model's modules."""

    single: Mapping[str, ModuleTensors]
    stacked: Sequence[StackedTensors]


def sort_modules(
    source: str, modules: Mapping[str, ModuleTensors], config: PeftConfig, catalog: ExpertCatalog
) -> AdapterModules:
    """Tell modules from parameters with all experts. Raises InvalidAdapter for what experts cannot have."""
    single: dict[str, ModuleTensors] = {}
    stacked: list[StackedTensors] = []
    for name, tensors in modules.items():
        if (parameters := catalog.stacked.get(name.removesuffix(INNER))) is not None:
            stacked.append(_stacked(source, tensors, parameters, config))
            continue
        module = catalog.aliases.get(name, name)
        if module in single:
            raise InvalidAdapter(
                f"{source}: {shown(single[module].name)} and {shown(tensors.name)} are the same module"
            )
        parameter = f"{tensors.name}.weight"  # of a linear layer, such as a router
        single[module] = replace(tensors, name=parameter) if config.targets_parameter(parameter) else tensors
    _check_experts(source, single, stacked, config, catalog)
    return AdapterModules(single, stacked)


def _stacked(
    source: str, tensors: ModuleTensors, parameters: Sequence[StackedParameter], config: PeftConfig
) -> StackedTensors:
    module = tensors.name.removesuffix(INNER)
    wrapped = [each for each in parameters if config.targets_parameter(f"{module}.{each.name}")]
    place = len(wrapped) - (2 if tensors.name.endswith(INNER) else 1)
    if place < 0:
        raise InvalidAdapter(
            f"{source}: {shown(tensors.name)} has the matrices of a parameter, but target_parameters names "
            f"{len(wrapped)} of its {len(parameters)}: {', '.join(each.name for each in parameters)}"
        )
    parameter = wrapped[place]
    return StackedTensors.of(source, parameter, replace(tensors, name=f"{module}.{parameter.name}"), config)


def _check_experts(
    source: str,
    single: Mapping[str, ModuleTensors],
    stacked: Sequence[StackedTensors],
    config: PeftConfig,
    catalog: ExpertCatalog,
) -> None:
    experts = {name: each for name, each in single.items() if name in catalog.shapes}
    changed = [*(each.name for each in experts.values()), *(each.tensors.name for each in stacked)]
    if catalog.are_shared and changed:
        raise InvalidAdapter(
            f"{source}: {shown(changed[0])} is a routed expert, which cannot be changed with expert_parallel over "
            "several workers; use expert_parallel in one worker, with tensor_parallel of the same number"
        )
    if config.invocation and changed:
        raise InvalidAdapter(
            f"{source}: {changed[0]} cannot be changed by an activated adapter, as in PEFT: experts have the tokens of "
            "many positions; target the attention's projections"
        )
    _check_dora(source, experts, stacked, catalog)
    fused = (name.removesuffix(FUSED) for name in experts if name.endswith(f".{FUSED}"))
    for expert in fused:
        if any(f"{expert}{first}" in experts for first in catalog.firsts):
            raise InvalidAdapter(f"{source}: {expert}{FUSED} is changed twice, as one projection and as two")
    twice = next((each for each in stacked if any(map(experts.__contains__, each.parameter.separate_modules()))), None)
    if twice is not None:
        raise InvalidAdapter(
            f"{source}: the experts of {twice.parameter.source.prefix} are changed twice, as single modules and as the "
            f"parameter {twice.parameter.name}; keep one of them"
        )


def _check_dora(
    source: str, experts: Mapping[str, ModuleTensors], stacked: Sequence[StackedTensors], catalog: ExpertCatalog
) -> None:
    whole = next((each.tensors.name for each in stacked if each.tensors.magnitude is not None), None)
    if whole is not None:
        raise InvalidAdapter(
            f"{source}: {shown(whole)} cannot have DoRA, as in PEFT, since it has the matrices of all experts; train "
            "it without use_dora, or the experts as one module each"
        )
    fused = (each.name for name, each in experts.items() if each.magnitude is not None and name.endswith(FUSED))
    if (with_magnitude := next(fused, None)) is not None:
        raise InvalidAdapter(
            f"{source}: {shown(with_magnitude)} cannot have DoRA, since it is two projections of an expert; train "
            f"{' and '.join(catalog.firsts)}, or without use_dora"
        )
