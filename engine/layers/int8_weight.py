"""Products in int8, on CPUs."""

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.ops.choice import ops_for

ROWS_AT_ONCE = 1024  # that are quantised, so that no copy of the weight in fp32 is made


class Int8Weight:
    """A weight with a scale for each of its rows, that meets tokens with a scale for each: 8 bits a number, both.

    A weight's scale is fixed when it is read, a token's is what it has when it comes (LLM.int8(), arXiv 2208.07339,
    section 2.1, "vector-wise"). Sums are of integers, so that a token's result does not depend on those beside it.
    """

    def __init__(self, weight: Tensor) -> None:
        """weight: [out_features, in_features]."""
        scales = weight.abs().amax(1).float().div_(127).clamp_(min=torch.finfo(torch.float32).tiny)
        quantised = torch.empty(weight.shape, dtype=torch.int8)
        for part, into, scale in zip(
            *(torch.split(rows, ROWS_AT_ONCE) for rows in (weight, quantised, scales)), strict=True
        ):
            into.copy_((part.float() / scale[:, None]).round_())
        self.packed: Tensor = torch.ops.onednn.qlinear_prepack(quantised, None)
        self._scales = scales
        self._zero_points = torch.zeros(len(scales), dtype=torch.int32)
        self._ops = ops_for(weight.device)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x: [num_tokens, in_features]. Returns x @ weight.T + bias, [num_tokens, out_features]."""
        tokens, scales = self._ops.quantise(x)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            tokens, 1.0, 128, self.packed, self._scales, self._zero_points, None, 1.0, 0, x.dtype, "none", [], ""
        )
        return self._ops.scale(product, scales, bias)


def check_quantization(quantization: str | None, device: torch.device) -> None:
    """Raises UnsupportedModel where products in int8 are not to be had, or would be wrong."""
    if quantization is None:
        return
    if device.type != "cpu":
        raise UnsupportedModel(f"quantization {quantization} is for CPUs, and the device is {device}: leave it out")
    if not (torch._C._has_mkldnn and torch.cpu._is_vnni_supported()):
        raise UnsupportedModel(
            f"quantization {quantization} needs a processor with AVX-512 VNNI, on which sums of products of bytes do "
            "not overflow, and this one has none: leave it out"
        )
