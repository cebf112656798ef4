"""Native fp32, bf16 and int8 products, on CPUs with AVX2, AVX-512 or tiles (AMX).

They are faster than oneDNN's, and give the same bits for any number of rows.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

try:
    from baton.engine.native.products import GatedProducts, Product, instruction_sets
except ImportError:  # installed without the compiled extensions
    Product = None  # type: ignore[assignment, misc]  # mypy has no optional class

COLUMNS = 16  # outputs per panel
PANELS_AT_ONCE = 16  # panels repacked at once


def product_instructions() -> str | None:
    """Return the instruction set of native products; None if there are none."""
    return None if Product is None else next(iter(instruction_sets()), None)


def can_have_panels(weight: Tensor, inputs_of_unit: int = 2) -> bool:
    """Return whether native products with this weight [out_features, in_features] are available, and the fastest.

    inputs_of_unit: 1 for fp32, 2 for bf16, 4 for int8 made from a bf16 weight.
    """
    dtype = torch.float32 if inputs_of_unit == 1 else torch.bfloat16
    if weight.device.type != "cpu" or weight.dtype != dtype:
        return False
    return weight.shape[1] % inputs_of_unit == 0 and weight.numel() > 0 and product_instructions() is not None


class PanelWeight:
    """Weight in panels of 16 outputs: for each 4 bytes of inputs, the values of the 16 outputs are adjacent.

    Outputs after the last one are padded with zeros.
    """

    panels: Tensor  # [ceil(out_features / 16), in_features / inputs_of_unit, 16, inputs_of_unit]
    result_dtype = torch.bfloat16

    def __init__(self, panels: Tensor, out_features: int, in_features: int, *of_outputs: int) -> None:
        """of_outputs: addresses of the scales and offsets of int8 weights."""
        instructions, inputs_of_unit = product_instructions(), panels.shape[3]
        assert instructions is not None
        self.panels = panels
        self.out_features = out_features
        self.in_features = in_features
        self.product = Product(instructions, panels.data_ptr(), out_features, in_features, inputs_of_unit, *of_outputs)

    @property
    def values(self) -> Tensor:
        """The panels."""
        return self.panels

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [num_tokens, out_features], for x [num_tokens, in_features] bf16."""
        assert x.dtype == torch.bfloat16
        assert x.shape == (len(x), self.in_features)
        assert bias is None or (bias.dtype == torch.bfloat16 and bias.shape == (self.out_features,))
        x = x.contiguous()
        result = torch.empty(len(x), self.out_features, dtype=self.result_dtype)
        pointers = x.data_ptr(), 0 if bias is None else bias.data_ptr(), result.data_ptr()
        self.product.run(*pointers, len(x), torch.get_num_threads())
        return result


class PairedWeight(PanelWeight):
    """bf16 weight, by pairs of inputs."""

    def __init__(self, weight: Tensor, *, is_owned: bool = False) -> None:
        """Repack a weight [out_features, in_features]; is_owned: in place, taking over its memory."""
        out_features, in_features = weight.shape
        num_missing = -out_features % COLUMNS
        whole = F.pad(weight, (0, 0, 0, num_missing)) if num_missing or not is_owned else weight.contiguous()
        all_panels = whole.view(-1, in_features // 2, COLUMNS, 2)
        # A panel replaces its outputs in place, to avoid a second copy of the weight.
        for panels in torch.split(all_panels.view(torch.int32).squeeze(3), PANELS_AT_ONCE):
            panels.copy_(panels.view(-1, COLUMNS, in_features // 2).clone().transpose(1, 2))
        super().__init__(all_panels, out_features, in_features)


class SingleWeight(PanelWeight):
    """fp32 weight, for bf16 activations and fp32 results."""

    result_dtype = torch.float32

    def __init__(self, weight: Tensor) -> None:
        """Repack a copy of a weight [out_features, in_features]."""
        out_features, in_features = weight.shape
        whole = F.pad(weight, (0, 0, 0, -out_features % COLUMNS))
        panels = whole.view(-1, COLUMNS, in_features).transpose(1, 2).contiguous().unsqueeze(3)
        super().__init__(panels, out_features, in_features)


class GatedWeights:
    """Gated MLPs, one per slot, computed for all slots' rows in one call on one set of threads."""

    def __init__(self, gate_up: Sequence[PanelWeight], down: Sequence[PanelWeight]) -> None:
        """gate_up: [2 * inner, hidden] each, the gate first; down: [hidden, inner]; see `can_gate`."""
        self.hidden = gate_up[0].in_features
        self.slots = list(zip(gate_up, down, strict=True))  # keeps the weights alive that `_products` points to
        self._products = GatedProducts([each.product for each in gate_up], [each.product for each in down])

    def __call__(self, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the outputs of rows [sum(sizes), hidden], sorted by slot, in the same shape."""
        assert rows.dtype == torch.bfloat16
        assert rows.shape == (sum(sizes), self.hidden)
        rows = rows.contiguous()
        result = torch.empty_like(rows)
        self._products.run(sizes, rows.data_ptr(), result.data_ptr(), torch.get_num_threads())
        return result


def can_gate(gate_up: PanelWeight, down: PanelWeight) -> bool:
    """Return whether the shapes are those of an MLP, and gate and up fill whole panels."""
    inner = down.in_features
    return gate_up.out_features == 2 * inner and gate_up.in_features == down.out_features and inner % COLUMNS == 0
