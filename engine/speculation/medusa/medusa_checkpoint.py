"""Medusa heads as their files describe them (arXiv 2401.10774); no torch.

Head `i` is a few residual blocks and an output layer. Files name them `i.j.linear` and `i.N`, as Medusa's own code, or
`blocks.i.layers.j` and `lm_heads.i`, as vLLM.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.checkpoint.tensor_prefixes import Prefixes, model_name
from baton.engine.checkpoint.weight_memory import ITEM_BYTES, LINEAR_BYTES
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError, InvalidCheckpoint
from baton.engine.speculation.config import OPTION, SpeculationConfig

PICKLE, SAFE = "medusa_lm_head.pt", "medusa_lm_head.safetensors"
CONVERSION = (
    "import torch, safetensors.torch as s; "
    f"s.save_file({{n: t.contiguous() for n, t in torch.load('{PICKLE}', weights_only=True).items()}}, '{SAFE}')"
)
OWN_NAME = re.compile(
    r"(?P<stem>(medusa_heads?\.)?(?P<head>\d{1,3})\.(?P<layer>\d{1,3})\.(?P<linear>linear\.)?)(weight|bias)"
)
LATER_NAMES: Prefixes = (
    *(("medusa_heads.blocks.", "model.blocks."), ("medusa_heads.lm_heads.", "model.lm_heads.")),
    *(("blocks.", "model.blocks."), ("lm_heads.", "model.lm_heads.")),
)
BLOCK = re.compile(r"model\.blocks\.(\d{1,3})\.layers\.(\d{1,3})\.weight")
OUTPUT = re.compile(r"model\.lm_heads\.(\d{1,3})\.weight")


@dataclass(frozen=True, slots=True)
class MedusaCheckpoint:
    """Medusa heads that fit the model for which they draft."""

    directory: Path
    engine: EngineConfig  # of the model
    target: ModelConfig
    num_heads: int
    num_layers: int  # residual blocks in front of each head's output layer
    prefixes: Prefixes  # of names in the files, and those in their place
    weights_bytes: int  # on a CPU, in the model's dtype or quantized like it, however the files store them

    @classmethod
    def of(cls, engine: EngineConfig, target: ModelConfig, options: SpeculationConfig) -> "MedusaCheckpoint":
        """Return the heads that an engine's options name for a model. Raises InvalidCheckpoint if they do not fit."""
        assert options.model is not None, "the options of Medusa name a directory"
        directory = Path(options.model).expanduser()
        if not directory.is_dir():
            raise InvalidCheckpoint(
                f"{OPTION}: the Medusa heads {options.model} are not a directory; name one with {SAFE}"
            )
        if (directory / PICKLE).exists() and not (directory / SAFE).exists():
            raise InvalidCheckpoint(
                f"{OPTION}: {directory / PICKLE} is a pickle, which is not read; convert it once, in its directory: "
                f'python -c "{CONVERSION}"'
            )
        try:
            return cls._read(directory, engine, target)
        except EngineError as error:
            raise type(error)(f"{OPTION}: the Medusa heads {directory}: {error}") from error

    @classmethod
    def _read(cls, directory: Path, engine: EngineConfig, target: ModelConfig) -> "MedusaCheckpoint":
        stored = read_tensors(directory)
        prefixes = _prefixes(stored)
        names = {name: model_name(name, prefixes) for name in stored}
        outputs = [stored[name] for name, new in names.items() if OUTPUT.fullmatch(new)]
        blocks = [match for new in names.values() if (match := BLOCK.fullmatch(new))]
        if not outputs:
            raise InvalidCheckpoint("it has neither 0.1.weight nor lm_heads.0.weight, so it has no heads of Medusa")
        for each in outputs:
            _check_shape(each, target)
        num_layers = 1 + max((int(match[2]) for match in blocks), default=-1)
        item_bytes = ITEM_BYTES[target.dtype] if engine.quantization is None else LINEAR_BYTES[engine.quantization]
        num_bytes = round(sum(prod(each.shape) for each in stored.values()) * item_bytes)
        return cls(directory, engine, target, len(outputs), num_layers, prefixes, num_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of the hidden states of a block's tokens."""
        return self.engine.block_size * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's hidden state; the heads have no KV."""
        return self.target.hidden_size * ITEM_BYTES[self.target.dtype]


def _prefixes(names: Iterable[str]) -> Prefixes:
    """Return the prefixes of the names in the files, and those in their place."""
    own = {(match["stem"], _in_place_of(match)) for name in names if (match := OWN_NAME.fullmatch(name))}
    return (*sorted(own), *LATER_NAMES)


def _in_place_of(match: re.Match[str]) -> str:
    """Return the prefix of a residual block, or of an output layer, which is no part `linear`."""
    head, layer = match["head"], match["layer"]
    return f"model.lm_heads.{head}." if match["linear"] is None else f"model.blocks.{head}.layers.{layer}."


def _check_shape(tensor: StoredTensor, target: ModelConfig) -> None:
    expected = [target.vocab_size, target.hidden_size]
    if list(tensor.shape) != expected:
        raise InvalidCheckpoint(
            f"{tensor.name} is {list(tensor.shape)}, but must be {expected}, the model's vocabulary and hidden size; "
            "name heads that were trained for this model"
        )
