"""Int8 products, on CPUs."""

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.errors import UnsupportedModel
from baton.engine.layers.weights.panel_weight import COLUMNS, PanelWeight, can_have_panels, product_instructions
from baton.engine.ops.factory import ops_for

ROWS_AT_ONCE = 256  # rows quantised at once, in whole panels, to avoid an fp32 copy of the weight


class Int8Weight:
    """Int8 weight with a scale per row, multiplied with int8 activations with a scale per token.

    Weight scales are fixed at loading, token scales are dynamic (LLM.int8(), arXiv 2208.07339, section 2.1,
    "vector-wise"). Sums are of integers, so a token's result does not depend on other tokens; they cannot overflow for
    up to 133,000 inputs. oneDNN multiplies.
    """

    def __init__(self, weight: Tensor, scales: Tensor | None = None) -> None:
        """Quantise a weight [out_features, in_features]; scales: see `int8_weight`."""
        self._scales = row_scales(weight) if scales is None else scales
        quantised = torch.empty(weight.shape, dtype=torch.int8)
        for rows in _some_rows(weight):
            quantised[rows] = _quantised(weight[rows], self._scales[rows])
        self.values: Tensor = torch.ops.onednn.qlinear_prepack(quantised, None)
        self._zero_points = torch.zeros(len(weight), dtype=torch.int32)
        self._ops = ops_for(weight.device)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [num_tokens, out_features], for x [num_tokens, in_features]."""
        tokens, scales = self._ops.quantise(x)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            tokens, 1.0, 128, self.values, self._scales, self._zero_points, None, 1.0, 0, x.dtype, "none", [], ""
        )
        return self._ops.scale(product, scales, bias)


class Int8PanelWeight(PanelWeight):
    """Int8Weight with native products, for bf16 activations: quantised, multiplied and scaled in one call."""

    def __init__(self, panels: Tensor, scales: Tensor, offsets: Tensor, out_features: int) -> None:
        """scales, offsets: of each output, with those that fill the last panel."""
        in_features = panels.shape[1] * panels.shape[3]
        super().__init__(panels, out_features, in_features, scales.data_ptr(), offsets.data_ptr())
        self.scales = scales
        self.offsets = offsets

    @classmethod
    def of(cls, weight: Tensor, given: Tensor | None = None) -> "Int8PanelWeight":
        """Quantise a copy of a weight [out_features, in_features]; given: its scales, see `int8_weight`."""
        out_features, in_features = weight.shape
        num_panels = -(-out_features // COLUMNS)
        panels = torch.zeros(num_panels, in_features // 4, COLUMNS, 4, dtype=torch.int8)
        scales = torch.zeros(num_panels * COLUMNS)
        offsets = torch.zeros(num_panels * COLUMNS, dtype=torch.int32)
        scales[:out_features] = row_scales(weight) if given is None else given
        for rows in _some_rows(weight):
            part = _quantised(weight[rows], scales[rows])
            offsets[rows] = part.sum(1, dtype=torch.int32) * 128  # tokens are stored as uint8 around 128
            whole = F.pad(part, (0, 0, 0, -len(part) % COLUMNS)).view(torch.int32).view(-1, COLUMNS, in_features // 4)
            first = rows.start // COLUMNS
            panels.view(torch.int32).squeeze(3)[first : first + len(whole)] = whole.transpose(1, 2)
        return cls(panels, scales, offsets, out_features)

    @property
    def values(self) -> Tensor:
        """The elements without their scales."""
        return self.panels


def int8_weight(weight: Tensor, scales: Tensor | None = None) -> Int8Weight | Int8PanelWeight:
    """Quantise a weight in the form that is fastest on this machine. Raises UnsupportedModel if it has no product.

    scales: those of its rows, if it is a part of them.
    """
    if can_have_panels(weight, inputs_of_unit=4):
        return Int8PanelWeight.of(weight, scales)
    if not _has_onednn_products():
        raise UnsupportedModel(
            f"quantization int8 of a weight {list(weight.shape)} in {weight.dtype} needs a CPU with VNNI: without "
            "it, weights must be in bfloat16 and their inputs a multiple of 4"
        )
    return Int8Weight(weight, scales)


def _has_onednn_products() -> bool:
    """Return whether oneDNN's sums of int8 products cannot overflow."""
    return torch._C._has_mkldnn and torch.cpu._is_vnni_supported()


def row_scales(weight: Tensor) -> Tensor:
    """Return the scale of each row of a weight."""
    return weight.abs().amax(1).float().div_(127).clamp_(min=torch.finfo(torch.float32).tiny)


def _some_rows(weight: Tensor) -> list[slice]:
    """Split all rows into slices of at most ROWS_AT_ONCE."""
    return [slice(first, min(first + ROWS_AT_ONCE, len(weight))) for first in range(0, len(weight), ROWS_AT_ONCE)]


def _quantised(rows: Tensor, scales: Tensor) -> Tensor:
    return (rows.float() / scales[:, None]).round_().to(torch.int8)


def check_quantization(quantization: str | None, device: torch.device) -> None:
    """Raise UnsupportedModel if int8 products are not available on the device."""
    if quantization != "int8":
        return
    if device.type != "cpu":
        raise UnsupportedModel(f"quantization {quantization} is for CPUs, but the device is {device}: leave it out")
    if product_instructions() is None and not _has_onednn_products():
        raise UnsupportedModel(
            f"quantization {quantization} needs a CPU with VNNI, or with AVX2 and Baton's compiled modules (`baton "
            "doctor` reports both): leave it out"
        )
