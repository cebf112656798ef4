"""Native products with weights in groups, on a CPU: rows are decoded and multiplied in one pass, with sums in fp32."""

import torch
from torch import Tensor

from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix

try:
    from baton.engine.native.grouped_products import GroupedProduct, instruction_sets
except ImportError:  # installed without the compiled extensions
    GroupedProduct = None  # type: ignore[assignment, misc]  # mypy has no optional class

BLOCK, SPAN = 32, 16  # input columns are a multiple of the first, and those of a group of the second
KINDS = {  # as in weight.hpp
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.uint8: 3,
    torch.int8: 4,
    torch.int16: 5,
    torch.float8_e4m3fn: 6,
}
DTYPES = (torch.bfloat16, torch.float32)


class NativeGroups:
    """A grouped matrix for the native code; a row's result does not depend on the other rows.

    The groups of a matrix whose columns are assigned to groups one by one must be of one size: its columns are sorted
    by group, and the inputs likewise at each product.
    """

    def __init__(self, matrix: GroupedMatrix, instructions: str | None = None, order: Tensor | None = None) -> None:
        """matrix: one that `has_native_product`; instructions: instruction set, by default the fastest.

        order: places of the columns of a matrix that is sorted already.
        """
        self.order = order
        if matrix.groups is not None:
            self.order = matrix.groups.argsort(stable=True).to(torch.int32)
            matrix = matrix.sorted(self.order)
        self.matrix = matrix
        self.out_features, self.in_features = matrix.shape
        self._product = GroupedProduct(
            instructions or instruction_sets()[0],
            matrix.low.data_ptr(),
            0 if matrix.high is None else matrix.high.data_ptr(),
            matrix.bits,
            matrix.table is not None,
            *matrix.shape,
            scales=_numbers(matrix.scales),
            outer_scales=_numbers(matrix.outer_scales),
            zeros=_numbers(matrix.zeros),
            minima=_numbers(matrix.minima),
            outer_minima=_numbers(matrix.outer_minima),
            order=0 if self.order is None else self.order.data_ptr(),
        )

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [num_tokens, out_features], for x [num_tokens, in_features]."""
        assert x.dtype in DTYPES
        assert x.shape == (len(x), self.in_features)
        assert bias is None or (bias.dtype == x.dtype and bias.shape == (self.out_features,))
        x = x.contiguous()
        result = torch.empty(len(x), self.out_features, dtype=x.dtype)
        pointers = x.data_ptr(), 0 if bias is None else bias.data_ptr(), result.data_ptr()
        self._product.run(*pointers, len(x), x.dtype == torch.bfloat16, torch.get_num_threads())
        return result

    def decoded(self) -> Tensor:
        """Return the weight in fp32, as the products see it."""
        result = torch.empty(self.out_features, self.in_features)
        self._product.decode(result.data_ptr())
        return result


def has_native_product(matrix: GroupedMatrix, dtype: torch.dtype) -> bool:
    """Return whether native products with a matrix and activations of a type are available."""
    if GroupedProduct is None or dtype not in DTYPES or matrix.low.device.type != "cpu":
        return False
    rows, columns = matrix.shape
    if rows == 0 or columns % BLOCK or columns % matrix.scales.shape[1] or matrix.width % SPAN:
        return False
    numbers = (matrix.scales, matrix.outer_scales, matrix.zeros, matrix.minima, matrix.outer_minima)
    if any(each is not None and each.dtype not in KINDS for each in numbers):
        return False
    return matrix.groups is None or _are_even(matrix.groups, matrix.scales.shape[1])


def _are_even(groups: Tensor, num_groups: int) -> bool:
    """Return whether all groups have as many columns."""
    sizes = groups.bincount(minlength=num_groups)
    return bool((sizes == sizes[0]).all())


def _numbers(tensor: Tensor | None) -> tuple[int, int, int] | None:
    return None if tensor is None else (tensor.data_ptr(), KINDS[tensor.dtype], tensor.shape[1])
