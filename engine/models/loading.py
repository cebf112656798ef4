"""Loading of a model: layers with the options of its config, tensors under the names of its family."""

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.delta_net import DeltaNetConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.experts.group import ExpertGroup
from baton.engine.families.registry import family_of
from baton.engine.families.tensor_names import ExpertNames
from baton.engine.kv.groups import KVGroups
from baton.engine.layers.attention import load_attention
from baton.engine.layers.embedding import Embedding, load_table
from baton.engine.layers.latent_attention import load_latent_attention
from baton.engine.layers.layer_inputs import load_layer_end, load_layer_inputs
from baton.engine.layers.linear import Linear, Projection, gathered, head_quantization, load_head
from baton.engine.layers.mlp import load_mlp
from baton.engine.layers.moe import load_moe
from baton.engine.layers.norm import NO_NORM, Norm, RMSNorm
from baton.engine.layers.parallel_experts import ParallelExperts
from baton.engine.layers.recurrent.delta_net import load_delta_net
from baton.engine.layers.recurrent.mamba import load_mamba
from baton.engine.layers.recurrent.rank_parts import RankParts
from baton.engine.layers.rotary import RotaryEmbedding
from baton.engine.layers.weights.grouped_weight import GroupedWeight
from baton.engine.models.causal_lm import CausalLM, MissingHead
from baton.engine.models.decoder_layer import Attention, DecoderLayer, FeedForward
from baton.engine.models.parallel_mixers import ParallelMixers
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.vision.encoder import VisionEncoder, load_encoder

HEAD = "lm_head.weight"


class ModelLoader:
    """Loads the parts of one model, or of a rank's shard of it, in the order of the layers."""

    def __init__(
        self,
        weights: Weights,
        config: ModelConfig,
        backend: AttentionBackend,
        tensor: TensorRanks,
        group: ExpertGroup | None,
        groups: KVGroups | None = None,
    ) -> None:
        """group: reads the experts when it forms; groups: KV groups of the layers, one by default.

        Raises UnsupportedModel if there is an expert group, but no experts.
        """
        if group is not None and config.moe is None:
            raise UnsupportedModel(f"expert_parallel: {config.architecture} has no experts")
        if group is not None and config.moe is not None and config.moe.is_parallel:
            raise UnsupportedModel(f"expert_parallel: {config.architecture} has a dense MLP next to its experts")
        self._weights = weights
        self._config = config
        self._backend = backend
        self._tensor = tensor
        self._group = group
        self._groups = groups or KVGroups(block_size=1)
        self._recurrent = config.recurrent.layers if config.recurrent is not None else ()
        self._family = family_of(config.architecture)
        self._names = self._family.names

    def load(self) -> CausalLM:
        """Return the model. Raises InvalidCheckpoint or UnsupportedModel."""
        weights, config = self._weights, self._config
        embedding, head = self.ends()
        layer_inputs = load_layer_inputs(weights, config, self._tensor)
        layers = [self._placed_layer(index) for index in range(config.num_layers)]
        without_kv = config.layers_without_attention.union(self._recurrent)
        return CausalLM(
            embedding,
            layers,
            self.norm("model.norm"),
            head,
            self._rotary(),
            self._backend,
            [
                None if layer in without_kv else self._groups.place(config.kv_layer(layer)).layer
                for layer in range(config.num_layers)
            ],
            config.logits_divisor,
            config.logits_soft_cap,
            layer_inputs,
            config.vision.rotary_sections if config.vision is not None else None,
            self._encoder(),
        )

    def _encoder(self) -> VisionEncoder | None:
        """Load the encoder of images. Only rank 0 has one: it sends the other ranks the embeddings."""
        vision = self._config.vision
        if vision is None or self._tensor.shard.rank:
            return None
        return load_encoder(self._weights, vision, self._config.hidden_size)

    def ends(self) -> tuple[Embedding, Projection]:
        """Load the embedding and the output layer, which may share their weights."""
        weights, config, tensor = self._weights, self._config, self._tensor
        rows = tensor.shard.of(config.vocab_size)
        table = load_table(weights, config, rows)
        head: Projection
        if config.tie_word_embeddings and not (self._family.prefers_stored_head and HEAD in weights):
            weight = GroupedWeight(table, weights.dtype) if isinstance(table, GroupedMatrix) else table
            head = gathered(Linear(weight, quantization=head_quantization(weights.quantization)), tensor)
        elif config.may_lack_head and HEAD not in weights:
            head = MissingHead(config.vocab_size)
        else:
            head = gathered(load_head(weights, config.hidden_size, config.vocab_size, rows), tensor)
        return Embedding(table, tensor, config, weights.dtype), head

    def _rotary(self) -> list[RotaryEmbedding]:
        """Return the rotary embedding of each layer; layers with the same one share it.

        That of layers that do not rotate has no table, which would take gigabytes for a context of millions of tokens.
        """
        config = self._config
        ropes = [config.rope_of(layer) for layer in range(config.num_layers)]
        rotated = {rope for layer, rope in enumerate(ropes) if layer not in config.unrotated_layers}
        made = {
            rope: RotaryEmbedding(rope, config.max_model_len if rope in rotated else 0, self._weights.device)
            for rope in set(ropes)
        }
        return [made[rope] for rope in ropes]

    def _placed_layer(self, index: int) -> DecoderLayer:
        with self._weights.layer(index):
            return self.layer(index)

    def layer(self, index: int) -> DecoderLayer:
        """Load one layer."""
        prefix, norms = f"model.layers.{index}", self._names.norms
        attention = self._mixer(index, prefix)
        has_feed_forward = attention is None or not self._config.has_single_parts
        before = norms.before_feed_forward if has_feed_forward and not self._is_parallel else None
        return DecoderLayer(
            before_attention=NO_NORM if attention is None else self._norm_at(prefix, norms.before_attention),
            attention=attention,
            after_attention=self._norm_at(prefix, norms.after_attention),
            before_feed_forward=self._norm_at(prefix, before),
            feed_forward=self._feed_forward(index, prefix) if has_feed_forward else None,
            after_feed_forward=self._norm_at(prefix, norms.after_feed_forward),
            multiplier=self._config.residual_multiplier,
            end=load_layer_end(self._weights, prefix, self._config),
        )

    def _mixer(self, index: int, prefix: str) -> Attention | None:
        """Load a layer's attention, its recurrent net, or both; None if it has neither."""
        config = self._config
        attention = None if index in config.layers_without_attention else self._attention(index, prefix)
        if index not in self._recurrent:
            return attention
        net = self._recurrent_net(index, f"{prefix}.{self._names.recurrent}")
        if attention is None:
            return net
        place = self._groups.place(config.kv_layer(index)).layer
        return ParallelMixers(attention, net, place, config.attention_output_multiplier)

    def _attention(self, index: int, prefix: str) -> Attention:
        name = f"{prefix}.{self._names.attention}"
        if self._config.mla is not None:
            return load_latent_attention(self._weights, name, self._config, self._backend, self._tensor)
        return load_attention(
            self._weights,
            name,
            self._names,
            self._config,
            self._backend,
            self._tensor,
            index,
            self._groups.place(self._config.kv_layer(index)).group,
        )

    def _recurrent_net(self, index: int, name: str) -> Attention:
        config, layouts = self._config.recurrent, self._groups.states
        assert config is not None
        assert layouts is not None, "groups without a layout of the recurrent state"
        place, parts = layouts.place(config.layers.index(index)), RankParts(layouts.num_shards, self._tensor)
        hidden, eps = self._config.hidden_size, self._config.rms_norm_eps
        if isinstance(config, DeltaNetConfig):
            by_key_head = self._names.by_key_head
            return load_delta_net(self._weights, name, config, hidden, eps, place, parts, by_key_head=by_key_head)
        return load_mamba(self._weights, name, config, hidden, eps, place, parts)

    @property
    def _is_parallel(self) -> bool:
        """Whether layers have a dense MLP next to their experts."""
        return self._config.moe is not None and self._config.moe.is_parallel

    def _feed_forward(self, index: int, prefix: str) -> FeedForward:
        config = self._config
        if config.moe is None or not config.is_sparse(index):
            return self._mlp(index, prefix)
        names, hidden, bias = self._expert_names(prefix), config.hidden_size, config.mlp_bias
        moe = load_moe(self._weights, prefix, names, hidden, config.moe, self._tensor, self._group, bias=bias)
        if not self._is_parallel:
            return moe
        return ParallelExperts(
            dense=self._mlp(index, prefix),
            experts=moe,
            before_dense=self.norm(f"{prefix}.pre_feedforward_layernorm"),
            after_dense=self.norm(f"{prefix}.post_feedforward_layernorm_1"),
            before_experts=self.norm(f"{prefix}.pre_feedforward_layernorm_2"),
            after_experts=self.norm(f"{prefix}.post_feedforward_layernorm_2"),
            before_router=self._router_norm(f"{prefix}.router.scale"),
        )

    def _mlp(self, index: int, prefix: str) -> Projection:
        config, size = self._config, self._config.intermediate_size
        if config.kv_layer(index) != index and config.shared_intermediate_size is not None:
            size = config.shared_intermediate_size
        return load_mlp(
            self._weights,
            f"{prefix}.{self._names.mlp}",
            config.hidden_size,
            size,
            self._tensor,
            bias=config.mlp_bias,
            fused=self._names.gate_up,
            down=self._names.down,
            activation=config.activation,
            multipliers=config.mlp_multipliers,
        )

    def _router_norm(self, name: str) -> RMSNorm:
        """Load the norm of a router's input, whose results are divided by the square root of their number."""
        hidden = self._config.hidden_size
        return RMSNorm(self._weights.take(name, hidden) * hidden**-0.5, self._config.rms_norm_eps)

    def _expert_names(self, prefix: str) -> ExpertNames:
        """Return those of the family's alternatives whose router this layer has; otherwise the first ones."""
        found = (each for each in self._names.experts if f"{prefix}.{each.block}.{each.router}" in self._weights)
        return next(found, self._names.experts[0])

    def _norm_at(self, prefix: str, name: str | None) -> Norm:
        return NO_NORM if name is None else self.norm(f"{prefix}.{name}")

    def norm(self, name: str) -> RMSNorm:
        """Load a norm of hidden states."""
        config = self._config
        weight = self._weights.take(f"{name}.weight", config.hidden_size)
        return RMSNorm(weight, config.rms_norm_eps, config.norm_offset)
