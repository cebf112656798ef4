from typing import Protocol

def instruction_sets() -> list[str]:
    """Those that this processor has, the best first. All give the same bits."""

class LayerOps(Protocol):
    """Reads and writes what it is pointed at. Strides count elements; rows are contiguous."""

    def norm(
        self, x: int, stride: int, weight: int, result: int, num_rows: int, width: int, eps: float, num_threads: int
    ) -> None: ...
    def add_norm(
        self, x: int, addend: int, weight: int, result: int, num_rows: int, width: int, eps: float, num_threads: int
    ) -> None: ...
    def silu_and_mul(self, gate_up: int, result: int, num_rows: int, width: int, num_threads: int) -> None: ...
    def quantise(
        self, x: int, stride: int, result: int, scales: int, num_rows: int, width: int, num_threads: int
    ) -> None: ...
    def scale(self, x: int, scales: int, bias: int, num_rows: int, width: int, num_threads: int) -> None: ...
    def rotate(
        self,
        x: int,
        token_stride: int,
        head_stride: int,
        weight: int,
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
