from collections.abc import Sequence

def instruction_sets() -> list[str]:
    """Return the instruction sets of this processor that the kernels are compiled for, fastest first."""

class GroupedProduct:
    """Product on raw pointers; numbers are given as an address, a kind and how many a row has."""

    def __init__(
        self,
        instructions: str,
        low: int,
        high: int,
        bits: int,
        is_e2m1: bool,
        num_outputs: int,
        num_inputs: int,
        scales: Sequence[int] | None,
        outer_scales: Sequence[int] | None,
        zeros: Sequence[int] | None,
        minima: Sequence[int] | None,
        outer_minima: Sequence[int] | None,
        order: int,
    ) -> None: ...
    def run(self, rows: int, bias: int, result: int, num_rows: int, is_bfloat16: bool, num_threads: int) -> None: ...
    def decode(self, result: int) -> None: ...
