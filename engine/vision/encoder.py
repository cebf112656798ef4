"""The vision encoder of Qwen2.5-VL (arXiv 2502.13923): patches attend within windows, in some layers to all."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.layers.linear import Linear
from baton.engine.vision.config import CHANNELS, VisionConfig
from baton.engine.vision.image import Image
from baton.engine.vision.patches import patch_places, patches_of
from baton.engine.vision.windows import windows_of

EPS = 1e-6  # of the norms
THETA = 1e4  # of the rotary embedding
PREFIX = "visual."  # of the names of its tensors


@dataclass(frozen=True, slots=True)
class VisionLayer:
    """One layer of the encoder, with norms in front of its two parts."""

    norm1: Tensor
    qkv: Linear
    proj: Linear
    norm2: Tensor
    gate: Linear
    up: Linear
    down: Linear
    num_heads: int

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, groups: Sequence[tuple[int, int]]) -> Tensor:
        """Return the residual stream [num_patches, hidden] after the layer.

        cos, sin: [num_patches, 1, head_dim] fp32; groups: number of windows and patches of each, one after another.
        """
        x = x + self.proj(self._attended(_normed(x, self.norm1), cos, sin, groups))
        normed = _normed(x, self.norm2)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def _attended(self, x: Tensor, cos: Tensor, sin: Tensor, groups: Sequence[tuple[int, int]]) -> Tensor:
        qkv = self.qkv(x).view(len(x), 3, self.num_heads, -1)
        heads = torch.stack([_rotated(qkv[:, 0], cos, sin), _rotated(qkv[:, 1], cos, sin), qkv[:, 2]])
        parts = heads.split_with_sizes([count * size for count, size in groups], dim=1)
        outputs = []
        for part, (count, size) in zip(parts, groups, strict=True):
            q, k, v = part.view(3, count, size, self.num_heads, -1).transpose(2, 3)
            outputs.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(count * size, -1))
        return torch.cat(outputs)


class VisionEncoder:
    """Patch embedding, layers, and the merger that makes a token's embedding of its patches."""

    def __init__(
        self, config: VisionConfig, embedding: Linear, layers: Sequence[VisionLayer], merger: "PatchMerger"
    ) -> None:
        self.config = config
        self.embedding = embedding
        self.layers = layers
        self.merger = merger
        self.progressed_s = 0.0  # monotonic time at which the last layer began; read by other threads

    @torch.inference_mode()
    def encode(self, image: Image) -> Tensor:
        """Return the embeddings [image.num_tokens, hidden size of the language model] of an image."""
        config, device = self.config, self.layers[0].norm1.device
        each = config.merge_size**2
        windows = windows_of(image.rows, image.columns, config.window_size // config.token_size)
        order = windows.order.to(device)
        x = self.embedding(patches_of(image, config, device).to(self.layers[0].norm1.dtype))
        x = x.view(image.num_tokens, each, -1)[order].flatten(0, 1)
        cos, sin = self._angles(image, windows.order)
        whole = ((1, len(x)),)
        within = tuple((count, size * each) for count, size in windows.groups)
        for index, layer in enumerate(self.layers):
            self.progressed_s = time.monotonic()
            x = layer(x, cos, sin, whole if index in config.full_layers else within)
        return torch.empty_like(merged := self.merger(x)).index_copy_(0, order, merged)

    def _angles(self, image: Image, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [num_patches, 1, head_dim] of the patches' rows and columns, in the order of windows."""
        config = self.config
        axis_dim = config.hidden_size // config.num_heads // 2
        frequencies = 1.0 / THETA ** (torch.arange(0, axis_dim, 2, dtype=torch.float32) / axis_dim)
        places = patch_places(image.rows, image.columns, config.merge_size)
        places = places.view(image.num_tokens, -1, 2)[order].flatten(0, 1)
        angles = (places[..., None] * frequencies).flatten(1)  # [num_patches, head_dim / 2], rows first
        angles = torch.cat([angles, angles], dim=-1).unsqueeze(1).to(self.layers[0].norm1.device)
        return angles.cos(), angles.sin()


@dataclass(frozen=True, slots=True)
class PatchMerger:
    """Makes the embedding of a token of its patches."""

    norm: Tensor
    first: Linear
    last: Linear
    in_features: int  # all patches of a token

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out] for x [num_patches, hidden]."""
        return self.last(F.gelu(self.first(_normed(x, self.norm).view(-1, self.in_features))))


def load_encoder(weights: Weights, config: VisionConfig, out_size: int) -> VisionEncoder:
    """Load the encoder; out_size: hidden size of the language model.

    Raises InvalidCheckpoint or UnsupportedModel.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    merged = hidden * config.merge_size**2

    def linear(name: str, rows: int, columns: int) -> Linear:
        weight, bias = weights.take(f"{PREFIX}{name}.weight", rows, columns), weights.take(f"{PREFIX}{name}.bias", rows)
        return Linear(weight, bias, is_owned=True)

    def norm(name: str) -> Tensor:
        return weights.take(f"{PREFIX}{name}.weight", hidden)

    def layer(name: str) -> VisionLayer:
        return VisionLayer(
            norm1=norm(f"{name}.norm1"),
            qkv=linear(f"{name}.attn.qkv", 3 * hidden, hidden),
            proj=linear(f"{name}.attn.proj", hidden, hidden),
            norm2=norm(f"{name}.norm2"),
            gate=linear(f"{name}.mlp.gate_proj", inner, hidden),
            up=linear(f"{name}.mlp.up_proj", inner, hidden),
            down=linear(f"{name}.mlp.down_proj", hidden, inner),
            num_heads=config.num_heads,
        )

    kernel = config.temporal_patch_size, config.patch_size, config.patch_size
    embedding = weights.take(f"{PREFIX}patch_embed.proj.weight", hidden, CHANNELS, *kernel).flatten(1)
    layers = [layer(f"blocks.{index}") for index in range(config.num_layers)]
    merger = PatchMerger(
        norm("merger.ln_q"), linear("merger.mlp.0", merged, merged), linear("merger.mlp.2", out_size, merged), merged
    )
    return VisionEncoder(config, Linear(embedding, is_owned=True), layers, merger)


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    """Return the RMS norm of x [num_rows, hidden], computed in fp32."""
    exact = x.float()
    return weight * (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads [num_patches, num_heads, head_dim] in fp32; pairs are half a head apart."""
    exact = heads.float()
    first, second = exact.chunk(2, dim=-1)
    return (exact * cos + torch.cat([-second, first], dim=-1) * sin).to(heads.dtype)
