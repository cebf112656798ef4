"""`adapter_config.json` of an adapter in PEFT's format."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import InvalidAdapter, InvalidCheckpoint
from baton.engine.lora.activation import MAX_INVOCATION_TOKENS, MAX_TOKEN_ID
from baton.engine.lora.module_pattern import MAX_KEYS, ModulePattern

CONFIG = "adapter_config.json"

# Options that change outputs in ways that are not implemented.
REFUSED: Mapping[str, str] = {
    "modules_to_save": "whole modules cannot be replaced; target them with LoRA",
    "trainable_token_indices": "embeddings of tokens cannot be replaced",
    "lora_bias": "biases cannot be changed",
    "fan_in_fan_out": "transposed weights are not supported",
    "layer_replication": "layers cannot be replicated",
    "use_qalora": "QALoRA is not supported",
    "use_bdlora": "block-diagonal LoRA is not supported",
    "arrow_config": "routers of adapters are not supported",
    "kasa_config": "KaSA is not supported",
    "monteclora_config": "MonteCLoRA is not supported",
    "velora_config": "VeLoRA is not supported",
}
# Options that are read, have no effect on the outputs of a trained adapter, or whose effect its tensors show.
KNOWN = frozenset(
    (
        *("alpha_pattern", "base_model_name_or_path", "bias", "init_lora_weights", "lora_alpha", "peft_type"),
        *("alora_invocation_tokens", "use_dora"),
        *("r", "rank_pattern", "use_rslora"),
        *("auto_mapping", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules", "inference_mode"),
        *("layers_pattern", "layers_to_transform", "loftq_config", "lora_dropout", "lora_ga_config"),
        *(
            "megatron_config",
            "megatron_core",
            "peft_version",
            "target_parameters",
            "qalora_group_size",
            "revision",
            "runtime_config",
        ),
        *("target_modules", "task_type"),
    )
)
# Initial values that leave the base weights as they are. Others are trained on changed base weights.
INITS = ("gaussian", "orthogonal", "eva")

STRAIGHT_PARAMETERS = (0, 19, 1)  # first version of PEFT that has the inputs of parameters of experts in lora_A
VERSION_PART = re.compile(r"\d+")
MAX_VERSION_CHARS = 32


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """Options of an adapter that determine its outputs."""

    base_model: str
    rank: int
    alpha: float
    rank_pattern: ModulePattern
    alpha_pattern: ModulePattern
    use_rslora: bool
    use_dora: bool
    invocation: Sequence[int]  # of an activated adapter; empty: it changes all tokens
    parameters: frozenset[str] = frozenset()  # ends of the names of parameters that are changed as such
    transposes_parameters: bool = False  # if they have three dimensions; see StackedTensors

    @classmethod
    def read(cls, directory: Path) -> "PeftConfig":
        """Read the config of an adapter. Raises InvalidAdapter, which names options that are not supported."""
        try:
            return cls._of(JsonObject.read(directory / CONFIG))
        except InvalidCheckpoint as error:
            raise InvalidAdapter(str(error)) from error

    @classmethod
    def _of(cls, config: JsonObject) -> "PeftConfig":
        _check_supported(config)
        result = cls(
            config.text("base_model_name_or_path", ""),
            config.size("r"),
            config.number("lora_alpha"),
            ModulePattern.of(config, "rank_pattern"),
            ModulePattern.of(config, "alpha_pattern"),
            config.boolean("use_rslora", False),
            config.boolean("use_dora", False),
            _invocation(config),
            _parameters(config),
            _version(config) < STRAIGHT_PARAMETERS,
        )
        unknown = [key for key, value in config.values.items() if value and key not in KNOWN]
        if unknown:
            raise InvalidAdapter(f"{config.source}: the option {shown(unknown[0])} is not supported; train without it")
        return result

    def targets_parameter(self, name: str) -> bool:
        """Return whether a parameter, such as model.layers.0.mlp.experts.down_proj, is changed as such."""
        parts = name.split(".")
        return any(".".join(parts[start:]) in self.parameters for start in range(len(parts)))

    def rank_of(self, module: str) -> int:
        """Return the rank of a module, such as model.layers.0.mlp.down_proj."""
        return int(self.rank_pattern.value_of(module, self.rank))

    def scale_of(self, module: str) -> float:
        """Return the factor on the outputs of a module's matrices."""
        rank, alpha = self.rank_of(module), self.alpha_pattern.value_of(module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def _check_supported(config: JsonObject) -> None:
    kind = config.raw("peft_type")
    if kind != "LORA":
        raise InvalidAdapter(f"{config.source}: peft_type is {shown(kind)}, but must be LORA")
    for name, advice in REFUSED.items():
        if config.raw(name):
            raise InvalidAdapter(f"{config.source}: {name} is set, but {advice}")
    bias, init = config.raw("bias"), config.raw("init_lora_weights")
    if bias not in (None, "none"):
        raise InvalidAdapter(f"{config.source}: bias is {shown(bias)}, but biases cannot be changed: it must be none")
    if isinstance(init, str) and init not in INITS:
        raise InvalidAdapter(
            f"{config.source}: init_lora_weights is {shown(init)}, which changes the base weights; convert the adapter "
            "to plain LoRA (PEFT's path_initial_model_for_weight_conversion)"
        )


def _invocation(config: JsonObject) -> Sequence[int]:
    tokens = config.integers("alora_invocation_tokens")
    if len(tokens) > MAX_INVOCATION_TOKENS or not all(0 <= token_id <= MAX_TOKEN_ID for token_id in tokens):
        raise InvalidAdapter(
            f"{config.source}: alora_invocation_tokens must be at most {MAX_INVOCATION_TOKENS} token ids from 0 to "
            f"{MAX_TOKEN_ID}"
        )
    if tokens and config.raw("use_dora"):
        raise InvalidAdapter(
            f"{config.source}: alora_invocation_tokens and use_dora are both set, which neither PEFT nor Baton supports"
        )
    return tokens


def _parameters(config: JsonObject) -> frozenset[str]:
    names = frozenset(config.texts("target_parameters"))
    if len(names) > MAX_KEYS:
        raise InvalidAdapter(f"{config.source}: target_parameters has {len(names)} names, over the limit of {MAX_KEYS}")
    unknown = next((name for name in sorted(names) if name.endswith("bias")), None)
    if unknown is not None:
        raise InvalidAdapter(f"{config.source}: target_parameters has {shown(unknown)}, but biases cannot be changed")
    return names


def _version(config: JsonObject) -> tuple[int, ...]:
    """Return the numbers of PEFT's version; it is saved from 0.18 on."""
    return tuple(map(int, VERSION_PART.findall(config.text("peft_version", "0")[:MAX_VERSION_CHARS])))
