"""Loading of a draft head: its layers from its files, the rest of the model for which it drafts."""

from copy import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.tensor_prefixes import Prefixes
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.errors import EngineError, InvalidCheckpoint, UnsupportedModel
from baton.engine.families.registry import family_of
from baton.engine.kv.layout import torch_dtype
from baton.engine.kv.scales import UNSCALED
from baton.engine.layers.attention import GroupedQueryAttention
from baton.engine.layers.embedding import Embedding, load_table
from baton.engine.layers.linear import Linear, Projection, load_fused, load_head, load_linear
from baton.engine.layers.mlp import load_mlp
from baton.engine.layers.norm import NO_NORM, Norm
from baton.engine.layers.rotary import RotaryEmbedding
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.decoder_layer import DecoderLayer
from baton.engine.models.hidden_states import Combine
from baton.engine.models.loading import HEAD, ModelLoader
from baton.engine.parallel.tensor_parallel import ONE_RANK
from baton.engine.speculation.config import EAGLE3, MTP, OPTION
from baton.engine.speculation.heads.head_checkpoint import NUM_AUX, HeadCheckpoint
from baton.engine.speculation.heads.head_model import Concatenation, HeadModel, Join, JoinedNorm, side_by_side

EMBEDDING = "model.embed_tokens.weight"
UNUSED = (EMBEDDING, "model.t2d", HEAD)  # copies of the model's, and what follows from d2t
Ends = tuple[Embedding, Projection]


class HeadLoader:
    """Loads a draft head, with the embedding and the output layer of the model if it has none."""

    def __init__(self, checkpoint: HeadCheckpoint, target: CausalLM, device: torch.device) -> None:
        """Open the files. Raises InvalidCheckpoint or UnsupportedModel."""
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._target = target
        self._device = device
        self._weights = self._open(checkpoint.directory, checkpoint.config, checkpoint.prefixes)
        self._backend: AttentionBackend = attention_for(self._config, checkpoint.engine.block_size, device)

    def load(self) -> tuple[HeadModel, Combine | None]:
        """Return the head, and the projection of the hidden states that it reads; None: it reads them as they are.

        Raises InvalidCheckpoint or UnsupportedModel.
        """
        checkpoint = self._checkpoint
        try:
            with torch.inference_mode():
                model, combine = self._mtp() if checkpoint.method == MTP else self._eagle()
        except EngineError as error:
            raise type(error)(f"{OPTION}: the draft head {checkpoint.directory}: {error}") from error
        self._weights.close()
        return model, combine

    def _open(self, directory: Path, config: ModelConfig, prefixes: Prefixes) -> Weights:
        quantization, dtype = self._checkpoint.engine.quantization, torch_dtype(config.dtype)
        stored = config.stored_quantization
        return Weights(directory, dtype, self._device, None, quantization, stored, prefixes)

    def _eagle(self) -> tuple[HeadModel, Combine | None]:
        """Load a head of EAGLE or EAGLE-3."""
        weights, config, hidden = self._weights, self._config, self._config.hidden_size
        loader = ModelLoader(weights, config, self._backend, ONE_RANK, None)
        is_third = self._checkpoint.method == EAGLE3
        width = NUM_AUX * self._checkpoint.target.hidden_size if is_third else 2 * hidden
        fc = load_linear(weights, "model.fc", width, hidden, bias="model.fc.bias" in weights)
        layers = [self._layer(loader, index) for index in range(config.num_layers)]
        embedding, output = self._ends()
        norm: Norm = NO_NORM
        token_ids: Tensor | None = None
        if is_third:
            norm = loader.norm("model.norm")
            embedding, output, token_ids = self._own_embedding(embedding), self._own_output(output), self._token_ids()
        weights.finish(lambda name: name in UNUSED or name.endswith(".rotary_emb.inv_freq"))
        join: Join = side_by_side if is_third else Concatenation(fc, NO_NORM, NO_NORM)
        model = HeadModel(embedding, join, layers, norm, output, self._rotary(), self._backend, token_ids)
        return model, fc if is_third else None

    def _layer(self, loader: ModelLoader, index: int) -> DecoderLayer:
        """Load a layer of EAGLE. The first of EAGLE-3 has two inputs, and that of EAGLE often no norm in front."""
        weights, config, prefix = self._weights, self._config, f"model.layers.{index}"
        before = f"{prefix}.input_layernorm"
        is_joined = index == 0 and self._checkpoint.method == EAGLE3
        norm: Norm = loader.norm(before) if index or is_joined or f"{before}.weight" in weights else NO_NORM
        if is_joined:
            of_state = loader.norm(f"{prefix}.hidden_norm")
            norm = JoinedNorm(norm, of_state, is_before_residual=self._checkpoint.norm_before_residual)
        sizes = [count * config.head_dim for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
        names = [f"{prefix}.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")]
        hidden, width = config.hidden_size, (1 + is_joined) * config.hidden_size
        qkv = load_fused(weights, names, width, sizes, bias=config.qkv_bias)
        bias = config.attention_output_bias
        output = load_linear(weights, f"{prefix}.self_attn.o_proj", sizes[0], hidden, bias=bias)
        return DecoderLayer(
            GroupedQueryAttention(config, qkv, output, None, UNSCALED, self._backend),
            load_mlp(weights, f"{prefix}.mlp", hidden, config.intermediate_size, ONE_RANK, bias=config.mlp_bias),
            norm,
            loader.norm(f"{prefix}.post_attention_layernorm"),
        )

    def _mtp(self) -> tuple[HeadModel, None]:
        """Load the model's first layer for multi-token prediction."""
        weights, target, prefix = self._weights, self._checkpoint.target, self._checkpoint.mtp_layer
        loader = ModelLoader(weights, replace(target, num_layers=target.num_layers + 1), self._backend, ONE_RANK, None)
        hidden, own_output = target.hidden_size, f"{prefix}.shared_head.head"
        project = load_linear(weights, f"{prefix}.eh_proj", 2 * hidden, hidden)
        join = Concatenation(project, loader.norm(f"{prefix}.enorm"), loader.norm(f"{prefix}.hnorm"))
        layer, norm = loader.layer(target.num_layers), loader.norm(f"{prefix}.shared_head.norm")
        embedding, output = self._ends()
        if f"{own_output}.weight" in weights:
            output = load_linear(weights, own_output, hidden, target.vocab_size)
        rotary, passes_normed = self._rotary(), self._checkpoint.passes_normed
        model = HeadModel(embedding, join, [layer], norm, output, rotary, self._backend, passes_normed=passes_normed)
        return model, None

    def _rotary(self) -> RotaryEmbedding:
        return RotaryEmbedding(self._config.rope, self._checkpoint.max_model_len, self._device)

    def _ends(self) -> Ends:
        """Return the model's embedding and output layer; read anew if this rank has only a shard of them.

        They share the weights with the model's, without what LoRA adapters add for the requests of a step.
        """
        target, embedding, output = self._checkpoint.target, self._target.embedding, self._target.head
        if not self._target.has_head:
            raise UnsupportedModel(f"the model {self._checkpoint.engine.model} has no lm_head, so it generates nothing")
        if embedding.tensor.shard.size == 1:
            if isinstance(output, Linear):
                output = copy(output)
                output.addend = None
            return Embedding(embedding.weight, embedding.tensor, target, embedding.dtype), output
        directory, prefixes = Path(self._checkpoint.engine.model), family_of(target.architecture).prefixes
        weights = self._open(directory, target, prefixes)
        ends = ModelLoader(weights, target, self._backend, ONE_RANK, None).ends()
        weights.close()
        return ends

    def _own_embedding(self, embedding: Embedding) -> Embedding:
        """Return the head's embedding, or else the model's."""
        if EMBEDDING not in self._weights:
            return embedding
        table = load_table(self._weights, self._config, slice(None))
        return Embedding(table, ONE_RANK, self._config, self._weights.dtype)

    def _own_output(self, output: Projection) -> Projection:
        """Return the head's output layer, or else the model's, if that has as many tokens."""
        size, whole = self._checkpoint.head_vocab_size, self._config.vocab_size
        if HEAD in self._weights:
            return load_head(self._weights, self._config.hidden_size, size, slice(None))
        if size != whole or self._config.hidden_size != self._checkpoint.target.hidden_size:
            raise InvalidCheckpoint(f"tensor {HEAD} is missing: the model's own has {whole} tokens instead of {size}")
        return output

    def _token_ids(self) -> Tensor | None:
        """Load the tokens that the head can draft; d2t has the differences between them and the head's own ids."""
        if "model.d2t" not in self._weights:
            return None
        size, whole = self._checkpoint.head_vocab_size, self._config.vocab_size
        token_ids = self._weights.take_integers("model.d2t", size) + torch.arange(size, device=self._device)
        if not bool(((token_ids >= 0) & (token_ids < whole)).all()) or len(set(token_ids.tolist())) != size:
            raise InvalidCheckpoint(f"d2t must map each of {size} tokens to another one below {whole}")
        return token_ids
