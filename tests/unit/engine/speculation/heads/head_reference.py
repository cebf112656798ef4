"""Drafts of a head, computed token by token with plain torch and transformers' hidden states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from safetensors.torch import load_file
from torch import Tensor

from tests.draft_heads import HEAD_DIM, HEADS, KV_HEADS, WEIGHTS

EPS, THETA = 1e-5, 1e4


def hidden_states(model: Path, token_ids: Sequence[int]) -> list[Tensor]:
    """The inputs of a model's layers, and at the end the final hidden states after the last norm."""
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        output = loaded(torch.tensor([token_ids]), output_hidden_states=True)
    return [each[0] for each in output.hidden_states]


@dataclass(frozen=True)
class ReferenceHead:
    """A head as functions: its first input, its layer, and its logits."""

    tensors: Mapping[str, Tensor]
    embedding: Tensor
    join: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # embeddings and states to residual and attention's input
    prefix: str
    logits: Callable[[Tensor], Tensor]

    def draft(self, token_ids: Sequence[int], states: Tensor, count: int) -> list[int]:
        """The first tokens that the head drafts, greedily, after `token_ids`.

        states: [len(token_ids) - 1, hidden], in front of all tokens but the first.
        """
        rows, drafts = list(token_ids[1:]), []
        for _ in range(count):
            residual = self._layer(*self.join(self.embedding[torch.tensor(rows)], states))
            drafts.append(int(self.logits(residual[-1]).argmax()))
            rows.append(drafts[-1])
            states = torch.cat([states, residual[-1:]])
        return drafts

    def _layer(self, residual: Tensor, x: Tensor) -> Tensor:
        q, k, v = (self._linear(x, f"self_attn.{each}_proj").unflatten(1, (-1, HEAD_DIM)) for each in "qkv")
        q, k = (rotated(each) for each in (q, k))
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
        attended = F.scaled_dot_product_attention(*(each.transpose(0, 1) for each in (q, k, v)), is_causal=True)
        residual = residual + self._linear(attended.transpose(0, 1).flatten(1), "self_attn.o_proj")
        normed = norm(residual, self.tensors[f"{self.prefix}.post_attention_layernorm.weight"])
        inner = F.silu(self._linear(normed, "mlp.gate_proj")) * self._linear(normed, "mlp.up_proj")
        return residual + self._linear(inner, "mlp.down_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"{self.prefix}.{name}.weight"].T


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """The root mean square norm."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def rotated(x: Tensor) -> Tensor:
    """Queries or keys [num_tokens, heads, width] after the rotary embedding."""
    angles = torch.outer(torch.arange(len(x)).float(), THETA ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


def eagle(model: Path, directory: Path) -> ReferenceHead:
    """A head of EAGLE for a model whose output layer is its embedding."""
    tensors = load_file(directory / WEIGHTS)
    table = load_file(model / WEIGHTS)["model.embed_tokens.weight"]

    def join(embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.cat([embeddings, states], dim=1) @ tensors["fc.weight"].T
        return joined, joined

    return ReferenceHead(tensors, table, join, "layers.0", lambda state: state @ table.T)


def eagle3(model: Path, directory: Path) -> ReferenceHead:
    """A head of EAGLE-3; its inputs are those of `combined`."""
    tensors = load_file(directory / WEIGHTS)
    table = load_file(model / WEIGHTS)["model.embed_tokens.weight"]

    def join(embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        names = ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight")
        parts = [norm(each, tensors[name]) for each, name in zip((embeddings, states), names, strict=True)]
        return states, torch.cat(parts, dim=1)

    def logits(state: Tensor) -> Tensor:
        own = tensors["lm_head.weight"] @ norm(state, tensors["norm.weight"])
        if "d2t" not in tensors:
            return own
        whole = torch.full((len(table),), -torch.inf)
        whole[torch.arange(len(own)) + tensors["d2t"]] = own
        return whole

    return ReferenceHead(tensors, table, join, "midlayer", logits)


def combined(directory: Path, states: Sequence[Tensor]) -> Tensor:
    """The inputs of a head of EAGLE-3, made of hidden states of three layers."""
    return torch.cat(list(states), dim=1) @ load_file(directory / WEIGHTS)["fc.weight"].T
