"""Contract of a model family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.checkpoint.tensor_prefixes import Prefixes
from baton.engine.config import ModelConfig
from baton.engine.families.tensor_names import TensorNames

# Completes the config that all families share with what this family's config.json has. Raises UnsupportedModel for
# options that are not implemented, InvalidCheckpoint.
Read = Callable[[JsonObject, ModelConfig], ModelConfig]


def _nothing(_: JsonObject) -> Mapping[str, object]:
    return {}


# Prefixes of the language model's tensors in a model for images.
LANGUAGE_MODEL: Prefixes = (
    ("language_model.lm_head.", "lm_head."),
    ("language_model.", ""),
    ("model.language_model.", "model."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Architectures that are read and named alike. The layers are shared; a family selects their options."""

    title: str  # as in the documentation
    architectures: tuple[str, ...]  # as in config.json
    read: Read
    reads: frozenset[str] = frozenset()  # keys of `options.NEUTRAL` that `read` understands; others are refused
    names: TensorNames = field(default_factory=TensorNames)
    theta: float = 1e4  # default of rope_theta
    rms_norm_eps: float = 1e-6  # default
    tie_word_embeddings: bool = False  # default
    interleaved: bool = False  # default of rope_interleave
    rope_of: str | None = None  # layer type whose rotary embedding is the model's main one, if each type has its own
    head_dim: int | None = None  # default; None: hidden_size / num_attention_heads
    partial_rotary_factor: float = 1.0  # default
    has_text_config: bool = False  # the language model's keys are in `text_config`
    defaults: Mapping[str, object] = field(default_factory=dict)  # of keys that a config.json may lack
    derived: Callable[[JsonObject], Mapping[str, object]] = _nothing  # defaults that follow from other keys
    prefers_stored_head: bool = False  # a stored output layer is used even if the config ties it to the embedding
    prefixes: Prefixes = ()  # in a checkpoint, and the language model's in their place
    overflows_float16: bool = False  # activations exceed float16's range
    unused: tuple[str, ...] = ()  # beginnings of the names of tensors that the model does not need
