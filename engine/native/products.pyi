from collections.abc import Sequence

def instruction_sets() -> list[str]:
    """Return those of this processor that products are compiled for, fastest first."""

class Product:
    """Product on raw pointers: bfloat16 rows; results in bfloat16, or in floats for a weight in floats."""

    def __init__(
        self,
        instructions: str,
        panels: int,
        num_outputs: int,
        num_inputs: int,
        inputs_of_unit: int,
        scales: int = 0,
        offsets: int = 0,
    ) -> None: ...
    def run(self, rows: int, bias: int, result: int, num_rows: int, num_threads: int) -> None: ...

class GatedProducts:
    """Two products per slot, with SwiGLU in between."""

    def __init__(self, gate_up: Sequence[Product], down: Sequence[Product]) -> None: ...
    def run(self, sizes: Sequence[int], rows: int, result: int, num_threads: int) -> None: ...

class LowRankProducts:
    """What an adapter adds to a layer's output; the caller keeps the products alive.

    parts: `a`, and for each of its outputs `b` and the first column.
    """

    def __init__(self, parts: Sequence[tuple[Product, Sequence[tuple[Product, int]]]]) -> None: ...

def add_low_rank(
    runs: Sequence[tuple[LowRankProducts, int, int]],
    rows: int,
    result: int,
    num_rows: int,
    num_inputs: int,
    num_columns: int,
    num_threads: int,
) -> None:
    """Change rows of the result (bfloat16). runs: products, first row, number of rows. Raises ValueError."""
