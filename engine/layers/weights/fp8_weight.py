"""FP8 (e4m3) products, on GPUs whose tensor cores support them.

A weight keeps its stored scales. Activations are quantised dynamically by their largest element: per row, or, with a
block-scaled weight, per 128 columns of a row (DeepSeek-V3, arXiv 2412.19437, section 3.3.2). Calibrated activation
scales of a checkpoint are not used, since one scale for all tokens is never better. Sums are in fp32, without the
faster, less precise accumulation that tensor cores offer; a bias is added after rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.stored_matrix import StoredMatrix
from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.checkpoint.weights import Stored, Weights
from baton.engine.layers.fp8_tokens.product import ScaledMatrix, few_token_product
from baton.engine.layers.fp8_tokens.quantise import E4M3, quantise

BLOCK = 128  # rows and columns that share a scale in a block-scaled weight
TOKEN_TILE = 4  # cuBLAS reads the scales of this many tokens at once
ITEM_TILE = 16  # rows and columns of a weight must be multiples of this
STRETCH_TILE = 4  # column blocks of a block-scaled weight are padded to a multiple of this
BLOCKS_SINCE = (12, 9)  # first CUDA version whose cuBLAS has block-scaled products


class StoredWeight(Protocol):
    """A weight that is multiplied in the form in which it is stored, or in one like it."""

    @property
    def values(self) -> Tensor:
        """Its elements without their scales; FP8: [out_features or more, in_features] in e4m3, contiguous."""
        ...

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [num_tokens, out_features], for x [num_tokens, in_features] in bfloat16."""
        ...


@dataclass(frozen=True, slots=True)
class RowScaledWeight:
    """FP8 weight with a scale per row; matrices with one scale each can thus be fused into one product."""

    values: Tensor
    scales: Tensor  # [out_features, 1] fp32

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [num_tokens, out_features]."""
        result = few_token_product(x, self.matrix, bias)
        return self.torch_product(x, bias) if result is None else result

    @property
    def matrix(self) -> ScaledMatrix:
        """The weight as the kernel for few tokens reads it."""
        out_features, in_features = self.values.shape
        return ScaledMatrix(self.values, self.scales, out_features, 1, in_features)

    def torch_product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply as torch does any number of tokens."""
        tokens, token_scales = quantise(x, x.shape[1])
        rows = F.ScalingType.RowWise
        product = F.scaled_mm(
            tokens, self.values.T, token_scales, rows, self.scales.T, rows, output_dtype=x.dtype
        )  # fmt: skip
        return product if bias is None else product + bias


@dataclass(frozen=True, slots=True)
class BlockScaledWeight:
    """FP8 weight with a scale per 128 x 128 block, or, if rows are not aligned to blocks, per 128 columns of a row."""

    values: Tensor
    scales: Tensor  # in cuBLAS's transposed layout
    has_whole_blocks: bool
    out_features: int

    @classmethod
    def of(cls, values: Tensor, grid: Tensor) -> "BlockScaledWeight":
        """Build from values [out_features, in_features] in e4m3 and grid [out_features, in_features / 128] fp32.

        cuBLAS supports scales per 128 rows, with the number of column blocks padded to a multiple of 4, and scales per
        single row, used if concatenated parts of matrices do not start at a block boundary.
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
        """Return x @ weight.T + bias, [num_tokens, out_features]."""
        result = few_token_product(x, self.matrix, bias)
        return self.torch_product(x, bias) if result is None else result

    @property
    def matrix(self) -> ScaledMatrix:
        """The weight as the kernel for few tokens reads it."""
        if self.has_whole_blocks:
            return ScaledMatrix(self.values, self.scales.T, self.out_features, BLOCK, BLOCK)
        return ScaledMatrix(self.values, self.scales, self.out_features, 1, BLOCK)

    def torch_product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply as torch does any number of tokens."""
        tokens, token_scales = quantise(x, BLOCK, TOKEN_TILE)
        stretches, blocks = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
        recipe = blocks if self.has_whole_blocks else stretches
        product = F.scaled_mm(
            tokens, self.values.T, token_scales, stretches, self.scales, recipe, output_dtype=x.dtype
        )  # fmt: skip
        result = product[: len(x), : self.out_features]
        return result if bias is None else result + bias


@dataclass(frozen=True, slots=True)
class Fp8Products:
    """FP8 products that a device supports."""

    of_rows: bool = False  # row-scaled
    of_blocks: bool = False  # block-scaled
    of_groups: bool = False  # grouped over several weights, row-scaled


def products_on(device: torch.device) -> Fp8Products:
    """Return the FP8 products that torch has kernels for on a device, by its compute capability."""
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
    """Return "fp8" if a checkpoint's products run in FP8, which gives other results than dequantised weights."""
    if stored is None or dtype != "bfloat16" or not stored.quantises_tokens:
        return None
    found = products_on(device)
    return "fp8" if (found.of_rows if stored.block is None else found.of_blocks) else None


def fp8_weight(weights: Weights, stored: Sequence[Stored], *, is_expert: bool = False) -> StoredWeight | None:
    """Concatenate stored matrices into one FP8 weight; None, with the reason in the log, if they must be dequantised.

    Experts stay in FP8 only if all of them can be computed by one grouped call. There is none for block scales, and a
    call per expert would leave most of the GPU idle, so block-scaled experts are dequantised.
    """
    parts = [part for part in stored if isinstance(part, StoredMatrix)]
    scales = [part.scales for part in parts if part.scales is not None]
    if not scales or len(parts) < len(stored):
        return None
    why = _obstacle(weights, parts, is_expert)
    if why is not None:
        weights.note_dequantised(why)
        return None
    values = torch.cat([part.values.view(torch.uint8) for part in parts]).to(weights.device).view(E4M3)
    grid = torch.cat([each.grid for each in scales]).to(weights.device)
    return RowScaledWeight(values, grid) if scales[0].width is None else BlockScaledWeight.of(values, grid)


def _obstacle(weights: Weights, parts: Sequence[StoredMatrix], is_expert: bool) -> str | None:
    """Return the reason why a product cannot run in FP8; None if it can."""
    stored, found = weights.stored_quantization, products_on(weights.device)
    assert stored is not None, "FP8 tensors are only read with a quantization_config"
    if not found.of_rows:
        gpu = "an NVIDIA GPU of compute capability 8.9, 9 or 10"
        return f"FP8 products need {gpu}, but the device is {weights.device}"
    if not stored.quantises_tokens:
        return "the checkpoint quantises only weights to FP8, not activations"
    if weights.dtype != torch.bfloat16:
        return "FP8 products need dtype bfloat16"
    if any(part.scales is None for part in parts):
        return "some matrices of a fused product are in FP8 and some are not"
    if stored.block is not None:
        return _obstacle_to_blocks(parts, stored.block, found, is_expert)
    if is_expert and not found.of_groups:
        return "grouped FP8 products of experts need a GPU of compute capability 9 or 10"
    if sum(len(part.values) for part in parts) % ITEM_TILE or parts[0].values.shape[1] % ITEM_TILE:
        return f"rows and columns of an FP8 weight must be multiples of {ITEM_TILE}"
    return None


def _obstacle_to_blocks(
    parts: Sequence[StoredMatrix], block: tuple[int, int], found: Fp8Products, is_expert: bool
) -> str | None:
    if is_expert:
        return "there is no grouped product of experts with block scales"
    if not found.of_blocks:
        return "block-scaled FP8 products need a GPU of compute capability 9, and CUDA 12.9"
    if block != (BLOCK, BLOCK):
        return f"block-scaled FP8 products need blocks of {BLOCK} x {BLOCK}, not {block[0]} x {block[1]}"
    if any(part.scales is not None and part.scales.offset for part in parts) or parts[0].values.shape[1] % BLOCK:
        return f"the columns of a block-scaled FP8 weight must be whole blocks of {BLOCK}"
    return None


def _with_rows_up_to(values: Tensor, num_rows: int) -> Tensor:
    """Pad an e4m3 matrix with zero rows up to `num_rows`."""
    if num_rows == len(values):
        return values
    padded = torch.zeros(num_rows, values.shape[1], dtype=torch.uint8, device=values.device).view(E4M3)
    padded[: len(values)].copy_(values)
    return padded
