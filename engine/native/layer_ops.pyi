from typing import Protocol

def instruction_sets() -> list[str]:
    """Return the instruction sets of this processor, fastest first. All give the same bits."""

def sort_rows(
    x: int,
    num_tokens: int,
    row_bytes: int,
    tokens: int,
    slots: int,
    num_entries: int,
    num_slots: int,
    tile: int,
    rows: int,
    places: int,
    num_threads: int,
) -> list[int]:
    """Write rows sorted by slot and each entry's row index; returns the rows per slot. Raises ValueError."""

class ChoiceRule:
    """Routing by scores; without group limits there is one group."""

    def __init__(
        self,
        *,
        num_experts: int,
        num_chosen: int,
        num_groups: int,
        num_best_groups: int,
        num_group_scores: int,
        is_normed: bool,
        factor: float,
    ) -> None: ...

def choose_experts(
    logits: int,
    bias: int,
    weights: int,
    experts: int,
    num_rows: int,
    rule: ChoiceRule,
    is_sigmoid: bool,
    num_threads: int,
) -> None:
    """Write weights (fp32) and experts (int64) of each row of logits. Raises ValueError."""

class LayerOps(Protocol):
    """Row operations on raw pointers. Strides count elements; rows are contiguous."""

    def norm(
        self,
        x: int,
        stride: int,
        weight: int,
        offset: float,
        result: int,
        num_rows: int,
        width: int,
        eps: float,
        num_threads: int,
    ) -> None: ...
    def add_norm(
        self,
        x: int,
        addend: int,
        weight: int,
        offset: float,
        result: int,
        num_rows: int,
        width: int,
        eps: float,
        num_threads: int,
    ) -> None: ...
    def gate_and_mul(
        self, gate_up: int, result: int, num_rows: int, width: int, activation: int, num_threads: int
    ) -> None: ...
    def quantise(
        self, x: int, stride: int, result: int, scales: int, num_rows: int, width: int, num_threads: int
    ) -> None: ...
    def scale(self, x: int, scales: int, bias: int, num_rows: int, width: int, num_threads: int) -> None: ...
    def weighted_sum(
        self,
        rows: int,
        places: int,
        weights: int,
        result: int,
        num_rows: int,
        num_tokens: int,
        num_chosen: int,
        width: int,
        num_threads: int,
    ) -> None: ...
    def rotate(
        self,
        x: int,
        token_stride: int,
        head_stride: int,
        weight: int,
        offset: float,
        table: int,
        num_positions: int,
        positions: int,
        num_tokens: int,
        num_heads: int,
        width: int,
        is_interleaved: bool,
        eps: float,
        num_threads: int,
    ) -> None: ...

class Float32Ops(LayerOps):
    def __init__(self, instructions: str) -> None: ...

class Bfloat16Ops(LayerOps):
    def __init__(self, instructions: str) -> None: ...
