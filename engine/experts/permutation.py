"""Permutation of token rows into expert slot order, and back."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.layers.experts import ROW_TILE
from baton.engine.ops.factory import ops_for

try:
    from baton.engine.native.layer_ops import sort_rows
except ImportError:  # installed without the compiled extensions
    sort_rows = None  # type: ignore[assignment]  # mypy has no optional function


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Token rows sorted by slot. If the host knows the sizes, each may be padded to a multiple of the row tile."""

    rows: Tensor  # [sum(sizes), hidden]
    sizes: list[int] | Tensor  # rows per slot, known to the host; or, on the device, the ends of slots: see Experts
    places: Tensor  # [num_entries]: row index of each (token, chosen expert)
    token_of: Tensor | None = None  # [num_entries]; None: all tokens have equally many consecutive entries

    def of_tokens(self, values: Tensor, padding: int) -> Tensor:
        """Return the value of each row's token, [num_rows]. padding: value of rows that repeat others."""
        found = values.new_full((len(self.rows),), padding)
        each = len(self.places) // max(1, len(values))
        found[self.places] = values.repeat_interleave(each) if self.token_of is None else values[self.token_of]
        return found


def rows_by_slot(x: Tensor, token_of: Tensor | None, slots: Tensor, num_slots: int, tile: int = ROW_TILE) -> ExpertRows:
    """Return row `token_of[i]` of x for slot `slots[i]`, for each entry i, sorted by slot; stable within a slot.

    If `token_of` is None, all tokens have equally many consecutive entries. A slot's rows are padded to a multiple of
    `tile` by repeating some of them.
    """
    if sort_rows is not None and x.device.type == "cpu":
        return _sorted_natively(x, token_of, slots, num_slots, tile)
    given = token_of
    if token_of is None:
        token_of = torch.arange(len(slots), device=x.device) // max(1, len(slots) // max(1, len(x)))
    counts = slots.bincount(minlength=num_slots)
    sizes = (counts + tile - 1) // tile * tile
    # Start of a slot's rows minus the number of entries sorted before it.
    shifts = (sizes.cumsum(0) - sizes) - (counts.cumsum(0) - counts)
    order = slots.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device) + shifts[slots[order]]
    sizes_list: list[int] = sizes.tolist()
    firsts = order[(counts.cumsum(0) - counts).clamp(max=max(0, len(order) - 1))] if len(order) else order
    source = token_of[firsts].repeat_interleave(sizes) if len(order) else order
    source[places] = token_of
    return ExpertRows(x[source], sizes_list, places, given)


def _sorted_natively(x: Tensor, token_of: Tensor | None, slots: Tensor, num_slots: int, tile: int) -> ExpertRows:
    x, slots, num_entries = x.contiguous(), slots.contiguous(), slots.numel()
    token_of = token_of.contiguous() if token_of is not None else None
    assert slots.dtype == torch.int64
    assert token_of is None or (token_of.dtype == torch.int64 and token_of.shape == slots.shape)
    places = torch.empty(num_entries, dtype=torch.int64)
    most = num_entries + min(num_entries, num_slots) * (tile - 1)
    rows = torch.empty(most, x.shape[1], dtype=x.dtype)
    tokens = 0 if token_of is None else token_of.data_ptr()
    row_bytes = x.shape[1] * x.itemsize
    sizes = sort_rows(
        x.data_ptr(), len(x), row_bytes, tokens, slots.data_ptr(), num_entries, num_slots, tile,
        rows.data_ptr(), places.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return ExpertRows(rows[: sum(sizes)], sizes, places, token_of)


def weighted_sum(rows: Tensor, places: Tensor | None, weights: Tensor) -> Tensor:
    """Return each token's weighted sum of its entries' rows; see LayerOps."""
    return ops_for(rows.device).weighted_sum(rows, places, weights)
