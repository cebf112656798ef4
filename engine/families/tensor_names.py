"""Names of a layer's tensors in a checkpoint, below `model.layers.N`; they differ between families."""

from dataclasses import dataclass, field

from baton.engine.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NormNames:
    """Norms of a layer by their place; None: no norm there."""

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None  # its output is added to the residual stream
    before_feed_forward: str | None = "post_attention_layernorm"
    after_feed_forward: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertNames:
    """Experts and their router, all below `block`."""

    block: str = "mlp"  # empty: the layer itself
    router: str = "gate.weight"
    router_bias: str = "gate.bias"
    router_factors: str | None = None  # on the weights of each expert
    correction_bias: str = "gate.e_score_correction_bias"
    correction_bias_is_row: bool = False  # of shape [1, num_experts] instead of [num_experts]
    experts: str = "experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    all_gate_up: str = "experts.gate_up_proj"  # of all experts at once, as transformers 5 writes them
    all_down: str = "experts.down_proj"
    all_transposed: bool = False  # the input columns of those are the first dimension
    all_alternate: bool = False  # their rows of gate and up alternate, instead of following each other
    shared: str = "shared_experts"
    shared_gate_up: str | None = None  # one tensor with gate and up of those; None: two tensors
    shared_down: str = "down_proj"
    shared_gate: str = "shared_expert_gate.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """All names of a layer's tensors."""

    norms: NormNames = field(default_factory=NormNames)
    qkv: str | None = None  # one tensor with queries, keys and values in this order; None: three tensors
    attention: str = "self_attn"
    recurrent: str = "linear_attn"
    mlp: str = "mlp"  # of layers with a dense MLP
    gate_up: str | None = None  # one tensor with gate and up of the dense MLP; None: two tensors
    down: str = "down_proj"  # of the dense MLP
    by_key_head: bool = False  # two tensors have all projections of a delta net's input, by key head; False: four
    experts: tuple[ExpertNames, ...] = (ExpertNames(),)  # alternatives; a checkpoint has the router of one of them


def replaced_kv(config: ModelConfig) -> tuple[str, ...]:
    """Return beginnings of the names of tensors for KV in layers that share another layer's, which do not need them."""
    shared = range(config.num_layers - config.num_kv_shared_layers, config.num_layers)
    parts = ("k_proj.", "v_proj.", "k_norm.", "v_norm.")
    return tuple(f"model.layers.{layer}.self_attn.{part}" for layer in shared for part in parts)
