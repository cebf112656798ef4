"""A draft head as its files and the options describe it; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.checkpoint.tensor_prefixes import Prefixes, under_model
from baton.engine.checkpoint.weight_memory import ITEM_BYTES
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import EngineError, InvalidCheckpoint, UnsupportedModel
from baton.engine.families.qwen.recurrent import QWEN3_5, QWEN3_NEXT
from baton.engine.families.registry import family_of
from baton.engine.kv.dtype import kv_bytes_per_token
from baton.engine.speculation.config import EAGLE, EAGLE3, MTP, OPTION, SpeculationConfig

LLAMA = "LlamaForCausalLM"  # whose layers the heads of EAGLE have
ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    EAGLE: ("EagleLlamaForCausalLM", LLAMA),
    EAGLE3: ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"),
}
WITH_MTP = (
    *("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"),
    *(QWEN3_NEXT.architectures + QWEN3_5.architectures),
)
# Names of Qwen's layer for multi-token prediction, and those that follow the prefix of the others' layer.
OF_QWEN: Prefixes = (
    *(("mtp.fc.", "eh_proj."), ("mtp.pre_fc_norm_embedding.", "enorm."), ("mtp.pre_fc_norm_hidden.", "hnorm.")),
    *(("mtp.norm.", "shared_head.norm."), ("mtp.layers.0.", "")),
)
# Names in the files and those of a Llama: some heads have the prefix `model.`, others do not.
PREFIXES: Prefixes = (
    *(("lm_head.", "lm_head."), ("model.midlayer.", "model.layers.0."), ("midlayer.", "model.layers.0.")),
    *(("model.", "model."), ("", "model.")),
)
AUX_LAYERS, NUM_AUX = "eagle_aux_hidden_state_layer_ids", 3


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """A draft head that fits the model for which it drafts."""

    method: str
    directory: Path  # of the model itself with `mtp`
    engine: EngineConfig  # of the model
    target: ModelConfig
    config: ModelConfig  # of the head's own layers
    max_model_len: int  # tokens of the longest request for which it drafts
    head_vocab_size: int  # tokens that it can draft
    layers: tuple[int, ...] = ()  # of the model, whose inputs it reads; none: it reads the final hidden states
    norm_before_residual: bool = False

    @classmethod
    def of(cls, engine: EngineConfig, target: ModelConfig, options: SpeculationConfig) -> "HeadCheckpoint":
        """Return the head that an engine's options name for a model.

        Raises InvalidCheckpoint or UnsupportedModel if it cannot draft for this model.
        """
        if engine.hybrid_kv_cache:
            raise UnsupportedModel(
                f"{OPTION}: {options.method} reads hidden states of the whole context, which hybrid_kv_cache gives "
                "back; disable one of the two"
            )
        if options.method == MTP:
            return _of_model(engine, target)
        assert options.model is not None, "the options of EAGLE name a directory"
        directory = Path(options.model).expanduser()
        if not directory.is_dir():
            raise InvalidCheckpoint(
                f"{OPTION}: the draft head {options.model} is not a directory; name one with a head"
            )
        try:
            return _eagle(engine, target, directory, options.method)
        except EngineError as error:
            raise type(error)(f"{OPTION}: the draft head {directory}: {error}") from error

    def check_group(self, *, is_expert_parallel: bool) -> None:
        """Raise UnsupportedModel for a layer with experts in a group that divides those of the model."""
        if is_expert_parallel and self.method == MTP:
            raise UnsupportedModel(f"{OPTION}: mtp cannot be used with expert_parallel, which would divide its experts")

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of its KV, and of the hidden states of a block's tokens."""
        return self.engine.block_size * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of its KV of one token and of the token's hidden state."""
        return kv_bytes_per_token(self.config) + self.config.hidden_size * ITEM_BYTES[self.config.dtype]

    @property
    def weights_bytes(self) -> int:
        """Bytes of its weights on a CPU, if none of them are packed."""
        tensors = under_model(read_tensors(self.directory), self.prefixes)
        own = (each for name, each in tensors.items() if self.method != MTP or name.startswith(f"{self.mtp_layer}."))
        return sum(each.num_bytes for each in own)

    @property
    def mtp_layer(self) -> str:
        """Prefix of the tensors of the model's first layer for multi-token prediction."""
        return f"model.layers.{self.target.num_layers}"

    @property
    def prefixes(self) -> Prefixes:
        """Prefixes of names in the files, and those in their place."""
        return _mtp_prefixes(self.target) if self.method == MTP else PREFIXES

    @property
    def passes_normed(self) -> bool:
        """Whether the head's next hidden states are those after its last norm."""
        return self.method == MTP and self.target.recurrent is not None


def _context(engine: EngineConfig, target: ModelConfig) -> int:
    return engine.max_model_len or target.default_model_len


def _of_model(engine: EngineConfig, target: ModelConfig) -> HeadCheckpoint:
    """Return the first layer for multi-token prediction of a model's own checkpoint."""
    if target.architecture not in WITH_MTP:
        raise UnsupportedModel(
            f"{OPTION}: mtp is not supported for {target.architecture}, only for {', '.join(WITH_MTP)}"
        )
    directory, project = Path(engine.model), f"model.layers.{target.num_layers}.eh_proj.weight"
    is_separate = target.recurrent is not None
    tensors = under_model(read_tensors(directory), _mtp_prefixes(target))
    if not (target.num_nextn_predict_layers or is_separate) or project not in tensors:
        name = "mtp.fc.weight" if is_separate else project
        raise InvalidCheckpoint(
            f"{OPTION}: {directory} has no weights for multi-token prediction ({name}); name another method"
        )
    rope = target.rope.for_context(_context(engine, target))
    config = replace(target, num_layers=1, rope=rope, recurrent=None, layers_without_attention=frozenset())
    return HeadCheckpoint(MTP, directory, engine, target, config, _context(engine, target), target.vocab_size)


def _mtp_prefixes(target: ModelConfig) -> Prefixes:
    """Return the prefixes with which the layer for multi-token prediction follows the model's last layer."""
    prefixes = family_of(target.architecture).prefixes
    if target.recurrent is None:
        return prefixes
    return (*((old, f"model.layers.{target.num_layers}.{new}") for old, new in OF_QWEN), *prefixes)


def _eagle(engine: EngineConfig, target: ModelConfig, directory: Path, method: str) -> HeadCheckpoint:
    """Read the config of a head of EAGLE or EAGLE-3, and compare its sizes with the model's."""
    raw = JsonObject.read(directory / "config.json")
    names = raw.texts("architectures")
    if len(names) != 1 or names[0] not in ARCHITECTURES[method]:
        found = ", ".join(map(shown, names[:3])) or "none"
        raise UnsupportedModel(f"its architecture is {found}, but {method} needs {' or '.join(ARCHITECTURES[method])}")
    config = read_model_config(directory, target.dtype, on_cpu=engine.is_on_cpu, architecture=LLAMA)
    tensors = under_model(read_tensors(directory), PREFIXES)
    if not tensors or "model.fc.weight" not in tensors:
        raise InvalidCheckpoint(f"it has no fc.weight in *.safetensors, so it is no head of {method}")
    _check_sizes(raw, config, target, method, tensors)
    layers = _layers(raw, target) if method == EAGLE3 else ()
    context = _context(engine, target)
    return HeadCheckpoint(
        method,
        directory,
        engine,
        target,
        replace(config, rope=config.rope.for_context(context), max_model_len=context),
        context,
        raw.size("draft_vocab_size", config.vocab_size) if method == EAGLE3 else target.vocab_size,
        layers,
        raw.boolean("norm_before_residual", False),
    )


def _check_sizes(
    raw: JsonObject, config: ModelConfig, target: ModelConfig, method: str, tensors: Mapping[str, StoredTensor]
) -> None:
    """Raise InvalidCheckpoint if a head was made for a model of another size."""
    if config.vocab_size != target.vocab_size:
        raise InvalidCheckpoint(
            f"its vocabulary has {config.vocab_size} tokens, but the model's {target.vocab_size}; name a head that was "
            "trained for this model"
        )
    size = raw.size("target_hidden_size", config.hidden_size) if method == EAGLE3 else config.hidden_size
    has_embedding = method == EAGLE3 and "model.embed_tokens.weight" in tensors
    if size != target.hidden_size or not (has_embedding or config.hidden_size == target.hidden_size):
        raise InvalidCheckpoint(
            f"its hidden size is {size}, but the model's {target.hidden_size}; name a head that was trained for this "
            "model"
        )
    head_vocab_size = raw.size("draft_vocab_size", config.vocab_size)
    if method == EAGLE3 and head_vocab_size < config.vocab_size and "model.d2t" not in tensors:
        raise InvalidCheckpoint(
            f"it drafts {head_vocab_size} of {config.vocab_size} tokens, but has no d2t to tell which"
        )


def _layers(raw: JsonObject, target: ModelConfig) -> tuple[int, ...]:
    """Return the layers of the model whose inputs a head of EAGLE-3 reads, ascending."""
    given = raw.integers(AUX_LAYERS) or raw.inner("eagle_config").integers(AUX_LAYERS)
    layers = sorted(given or (2, target.num_layers // 2, target.num_layers - 3))
    if len(set(layers)) != NUM_AUX or not 0 <= layers[0] <= layers[-1] < target.num_layers:
        raise InvalidCheckpoint(
            f"{AUX_LAYERS} must be {NUM_AUX} of the model's layers, 0 to {target.num_layers - 1}, whose inputs it "
            f"reads, not {shown(layers)}"
        )
    return tuple(layers)
