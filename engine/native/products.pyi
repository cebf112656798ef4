from collections.abc import Sequence

def has_fastest_products() -> bool:
    """Whether this processor has products of pairs of bfloat16 and of bytes, and no tiles: others are faster there."""

class Product:
    """Reads and writes what it is pointed at: rows of bfloat16, results of floats for weights in floats."""

    def __init__(
        self, panels: int, num_outputs: int, num_inputs: int, inputs_of_unit: int, scales: int = 0, offsets: int = 0
    ) -> None: ...
    def run(self, rows: int, bias: int, result: int, num_rows: int, num_threads: int) -> None: ...

class GatedProducts:
    """Two products for each slot, and SwiGLU between them."""

    def __init__(self, gate_up: Sequence[Product], down: Sequence[Product]) -> None: ...
    def run(self, sizes: Sequence[int], rows: int, result: int, num_threads: int) -> None: ...
