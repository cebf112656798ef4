"""Products in FP8 (e4m3), on GPUs whose tensor cores have them.

A weight has the scales it is stored with; tokens are quantised as they come, each row, or with a block-scaled weight
each stretch of 128 columns of a row, by its own largest element (DeepSeek-V3, arXiv 2412.19437, section 3.3.2). Scales
of tokens that a checkpoint may have measured beforehand are not used: one for all tokens is never the better one. Sums
are in fp32, without the faster and shorter accumulation that tensor cores offer; a bias is added to what was rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.stored_matrix import StoredMatrix
from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.checkpoint.weights import Weights

E4M3 = torch.float8_e4m3fn
LAST = 448.0  # the largest number in e4m3
BLOCK = 128  # rows and columns that share a scale, where blocks do
TOKEN_TILE = 4  # cuBLAS reads the scales of so many tokens at once
ITEM_TILE = 16  # of rows and columns of a weight
STRETCH_TILE = 4  # of scales along the columns of a block-scaled weight
BLOCKS_SINCE = (12, 9)  # version of CUDA whose cuBLAS has products with scales of blocks
TINY = torch.finfo(torch.float32).tiny


class Fp8Weight(Protocol):
    """A weight in FP8 that meets tokens in FP8."""

    @property
    def values(self) -> Tensor:
        """[out_features or more, in_features] in e4m3, contiguous."""
        ...

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x: [num_tokens, in_features] in bfloat16. Returns x @ weight.T + bias, [num_tokens, out_features]."""
        ...


@dataclass(frozen=True, slots=True)
class RowScaledWeight:
    """A scale for each row, or for all of a matrix: rows of several matrices with different ones are one product."""

    values: Tensor
    scales: Tensor  # [out_features, 1] fp32

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See Fp8Weight."""
        tokens, token_scales = quantise(x, x.shape[1])
        rows = F.ScalingType.RowWise
        product = F.scaled_mm(
            tokens, self.values.T, token_scales, rows, self.scales.T, rows, output_dtype=x.dtype
        )  # fmt: skip
        return product if bias is None else product + bias


@dataclass(frozen=True, slots=True)
class BlockScaledWeight:
    """A scale for each block of 128 x 128, or, where the borders of blocks were lost, for 128 columns of each row."""

    values: Tensor
    scales: Tensor  # as cuBLAS reads them, transposed
    has_whole_blocks: bool
    out_features: int

    @classmethod
    def of(cls, values: Tensor, grid: Tensor) -> "BlockScaledWeight":
        """values: [out_features, in_features] in e4m3; grid: [out_features, in_features / 128] fp32.

        cuBLAS has scales of blocks of 128 rows, in columns whose length is a multiple of 4; and those of single rows,
        which serve where parts of matrices that lie one after another do not begin with a block.
        """
        out_features = len(values)
        padded = _with_rows_up_to(values, -(-out_features // BLOCK) * BLOCK)
        first = grid[::BLOCK]
        has_whole_blocks = torch.equal(first.repeat_interleave(BLOCK, 0)[:out_features], grid)
        if has_whole_blocks:
            scales = F.pad(first, (0, -first.shape[1] % STRETCH_TILE)).contiguous().T  # [stretches, blocks of rows]
        else:
            scales = F.pad(grid, (0, 0, 0, len(padded) - out_features)).T.contiguous().T  # [rows, stretches]
        return cls(padded, scales, has_whole_blocks, out_features)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """See Fp8Weight."""
        num_tokens = len(x)
        tokens, token_scales = quantise(F.pad(x, (0, 0, 0, -num_tokens % TOKEN_TILE)), BLOCK)
        stretches, blocks = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
        recipe = blocks if self.has_whole_blocks else stretches
        product = F.scaled_mm(
            tokens, self.values.T, token_scales, stretches, self.scales, recipe, output_dtype=x.dtype
        )  # fmt: skip
        result = product[:num_tokens, : self.out_features]
        return result if bias is None else result + bias


@dataclass(frozen=True, slots=True)
class Fp8Products:
    """Which products in FP8 a device has."""

    of_rows: bool = False  # with scales of rows
    of_blocks: bool = False
    of_groups: bool = False  # with scales of rows, those of several weights at once


def products_on(device: torch.device) -> Fp8Products:
    """What torch has kernels for on a device, by its compute capability."""
    if device.type != "cuda" or torch.version.cuda is None:
        return Fp8Products()
    capability = torch.cuda.get_device_capability(device)
    version = tuple(int(number) for number in torch.version.cuda.split(".")[:2])
    return Fp8Products(
        of_rows=capability == (8, 9) or capability[0] in (9, 10),
        of_blocks=capability[0] == 9 and version >= BLOCKS_SINCE,
        of_groups=capability[0] in (9, 10),
    )


def products_of(stored: StoredQuantization | None, dtype: str, device: torch.device) -> str | None:
    """fp8 if a checkpoint's products are made in FP8, whose results are others than those of dequantised weights."""
    if stored is None or dtype != "bfloat16" or not stored.quantises_tokens:
        return None
    found = products_on(device)
    return "fp8" if (found.of_rows if stored.block is None else found.of_blocks) else None


def fp8_weight(weights: Weights, parts: Sequence[StoredMatrix], *, is_expert: bool = False) -> Fp8Weight | None:
    """Stored matrices one after another as one weight in FP8; None for one that is to be dequantised.

    The log says why. An expert's weight is in FP8 where the products of all experts are one call; there is none with
    scales of blocks, and a call for each expert would idle most of the GPU, so that such experts are dequantised.
    """
    scales = [part.scales for part in parts if part.scales is not None]
    if not scales:
        return None
    why = _obstacle(weights, parts, is_expert)
    if why is not None:
        weights.note_dequantised(why)
        return None
    values = torch.cat([part.values.view(torch.uint8) for part in parts]).to(weights.device).view(E4M3)
    grid = torch.cat([each.grid for each in scales]).to(weights.device)
    return RowScaledWeight(values, grid) if scales[0].width is None else BlockScaledWeight.of(values, grid)


def quantise(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """x: [num_tokens, size], each stretch of `width` columns of a row to be scaled by its largest element.

    Returns it in e4m3, and the scales [num_tokens, size / width] fp32, the numbers of one stretch side by side. The
    scale of a stretch that is not finite is not finite.
    """
    num_tokens, size = x.shape
    stretches = x.reshape(num_tokens, size // width, width)
    scales = stretches.abs().amax(2).float().div_(LAST).clamp_(min=TINY)
    tokens = (stretches / scales.unsqueeze(2)).to(E4M3).flatten(1)  # divided in fp32
    return tokens, scales.T.contiguous().T


def _obstacle(weights: Weights, parts: Sequence[StoredMatrix], is_expert: bool) -> str | None:
    """Why a product cannot be in FP8; None if it can."""
    stored, found = weights.stored_quantization, products_on(weights.device)
    assert stored is not None, "without it no tensor in FP8 is read"
    if not found.of_rows:
        gpu = "an NVIDIA GPU of compute capability 8.9, 9 or 10"
        return f"products in FP8 need {gpu}, and the device is {weights.device}"
    if not stored.quantises_tokens:
        return "the checkpoint has its weights alone in FP8, and not what they are multiplied with"
    if weights.dtype != torch.bfloat16:
        return "products in FP8 give bfloat16"
    if any(part.scales is None for part in parts):
        return "of matrices that are one product, some are in FP8 and some are not"
    if stored.block is not None:
        return _obstacle_to_blocks(parts, stored.block, found, is_expert)
    if is_expert and not found.of_groups:
        return "products of all experts at once need a GPU of compute capability 9 or 10"
    if sum(len(part.values) for part in parts) % ITEM_TILE or parts[0].values.shape[1] % ITEM_TILE:
        return f"rows and columns of a product in FP8 must be multiples of {ITEM_TILE}"
    return None


def _obstacle_to_blocks(
    parts: Sequence[StoredMatrix], block: tuple[int, int], found: Fp8Products, is_expert: bool
) -> str | None:
    if is_expert:
        return "there is no product of all experts at once with scales of blocks"
    if not found.of_blocks:
        return "products with scales of blocks need a GPU of compute capability 9, and CUDA 12.9"
    if block != (BLOCK, BLOCK):
        return f"products with scales of blocks have {BLOCK} x {BLOCK}, and these have {block[0]} x {block[1]}"
    if any(part.scales is not None and part.scales.offset for part in parts) or parts[0].values.shape[1] % BLOCK:
        return f"the columns of a product with scales of blocks must be whole blocks of {BLOCK}"
    return None


def _with_rows_up_to(values: Tensor, num_rows: int) -> Tensor:
    """A matrix in e4m3 with zeros below."""
    if num_rows == len(values):
        return values
    padded = torch.zeros(num_rows, values.shape[1], dtype=torch.uint8, device=values.device).view(E4M3)
    padded[: len(values)].copy_(values)
    return padded
