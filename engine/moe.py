"""Configuration of a mixture of experts: plain data, no torch."""

from dataclasses import dataclass

from baton.engine.activation import MLPActivation


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Mixture of experts: expert routing and the experts' sizes."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    norm_topk_prob: bool = True
    scoring: str = "softmax"  # softmax, sigmoid
    score_correction_bias: bool = False  # added to the scores for routing only, not to the weights
    num_groups: int = 1  # experts are chosen from the best `topk_groups` of these
    topk_groups: int = 1
    group_score_top: int = 2  # a group's score is the sum of this many of its best experts' scores
    routed_scaling_factor: float = 1.0
    shared_size: int = 0  # inner size of all shared experts together, which every token uses
    has_shared_gate: bool = False  # the shared experts' output is scaled by a sigmoid
    dense_layers: frozenset[int] = frozenset()  # layers with a dense MLP
    activation: MLPActivation = "silu"
    has_biases: bool = False  # in the router and in the experts
    is_parallel: bool = False  # next to a dense MLP, each with norms of its own (Gemma 4)
    weights_inputs: bool = False  # a token's weight multiplies its one expert's input instead of its output
