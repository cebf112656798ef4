"""Tensors of an adapter's file, by the module that they change."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from baton.engine.checkpoint.json_object import shown
from baton.engine.checkpoint.stored_tensor import MAX_NAME_CHARS, StoredTensor
from baton.engine.checkpoint.tensor_prefixes import Prefixes, model_name
from baton.engine.errors import InvalidAdapter
from baton.engine.lora.fit import EMBEDDING, ModuleShape

NAME = re.compile(
    r"base_model\.model\.(?P<module>.+)\."
    r"(lora_(?P<side>[AB])\.weight|lora_embedding_(?P<embedding>[AB])|lora_(?P<magnitude>magnitude_vector)(\.weight)?"
    r"|(?P<base>base_layer)\.weight)"
)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
COPIED = ("embed_tokens", "lm_head")  # PEFT saves the base weights of these with their matrices


@dataclass(frozen=True, slots=True)
class ModuleTensors:
    """Tensors of one module."""

    name: str  # of the module in the file, which patterns of the config match
    a: StoredTensor
    b: StoredTensor
    magnitude: StoredTensor | None = None  # of DoRA
    base: StoredTensor | None = None  # copy of the base weights

    @property
    def shape(self) -> ModuleShape:
        """Sizes of the module."""
        return ModuleShape(self.a.shape[1], self.b.shape[0])


def by_module(
    source: str, tensors: Mapping[str, StoredTensor], *, use_dora: bool, prefixes: Prefixes = ()
) -> dict[str, ModuleTensors]:
    """Return the tensors of each module, by its name in the model; prefixes: of the model's family.

    Raises InvalidAdapter if one is missing, unknown, or has no such shape.
    """
    found: dict[str, dict[str, StoredTensor]] = {}
    stored: dict[str, str] = {}
    for name, tensor in tensors.items():
        match = NAME.fullmatch(name)
        if match is None or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise InvalidAdapter(f"{source}: {shown(name)} is not a LoRA matrix of a linear layer: not supported")
        module, is_embedding = _model_module(match["module"], prefixes), match["embedding"] is not None
        kind = match["side"] or match["embedding"] or match["magnitude"] or match["base"]
        if kind in "AB" and is_embedding != (module.rpartition(".")[2] == EMBEDDING):
            raise InvalidAdapter(f"{source}: {shown(name)} is not a LoRA matrix of a linear layer: not supported")
        if kind == "base_layer" and module.rpartition(".")[2] not in COPIED:
            raise InvalidAdapter(f"{source}: {shown(name)} is a base weight, which cannot be replaced")
        if stored.setdefault(module, match["module"]) != match["module"]:
            raise InvalidAdapter(f"{source}: {shown(stored[module])} and {shown(match['module'])} are the same module")
        found.setdefault(module, {})[kind] = tensor
    if not found:
        raise InvalidAdapter(f"{source} holds no tensors")
    return {
        module: _tensors_of(source, module, stored[module], kinds, use_dora=use_dora) for module, kinds in found.items()
    }


def _model_module(name: str, prefixes: Prefixes) -> str:
    return model_name(f"{name}.weight", prefixes).removesuffix(".weight")


def _tensors_of(
    source: str, module: str, name: str, kinds: Mapping[str, StoredTensor], *, use_dora: bool
) -> ModuleTensors:
    for kind in ("A", "B"):
        if kind not in kinds:
            raise InvalidAdapter(f"{source}: {shown(module)} has no lora_{kind}")
    made = ModuleTensors(name, kinds["A"], kinds["B"], kinds.get("magnitude_vector"), kinds.get("base_layer"))
    for tensor in (made.a, made.b):
        if len(tensor.shape) != 2 or tensor.dtype not in DTYPES:
            raise _wrong(source, tensor, "a matrix")
    if use_dora != (made.magnitude is not None):
        verb = "has no" if use_dora else "has a"
        raise InvalidAdapter(f"{source}: use_dora is {use_dora}, but {shown(module)} {verb} lora_magnitude_vector")
    if made.magnitude is not None:
        if module.rpartition(".")[2] == EMBEDDING:
            raise InvalidAdapter(f"{source}: {shown(module)} cannot have DoRA; train it without, or leave it out")
        if tuple(made.magnitude.shape) != (made.shape.out_features,) or made.magnitude.dtype not in DTYPES:
            raise _wrong(source, made.magnitude, f"a vector of {made.shape.out_features} values")
    return made


def _wrong(source: str, tensor: StoredTensor, wanted: str) -> InvalidAdapter:
    kind = f"{tensor.dtype} {list(tensor.shape)}"
    return InvalidAdapter(f"{source}: {tensor.name} is {kind}, but must be {wanted} in float32, float16 or bfloat16")
