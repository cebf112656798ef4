from collections.abc import Sequence

def has_fastest_products() -> bool:
    """Return whether the native products are fastest: bf16 and int8 dot products, but no tiles (AMX)."""

class Product:
    """Product on raw pointers: bfloat16 rows; results in bfloat16, or in floats for a weight in floats."""

    def __init__(
        self, panels: int, num_outputs: int, num_inputs: int, inputs_of_unit: int, scales: int = 0, offsets: int = 0
    ) -> None: ...
    def run(self, rows: int, bias: int, result: int, num_rows: int, num_threads: int) -> None: ...

class GatedProducts:
    """Two products per slot, with SwiGLU in between."""

    def __init__(self, gate_up: Sequence[Product], down: Sequence[Product]) -> None: ...
    def run(self, sizes: Sequence[int], rows: int, result: int, num_threads: int) -> None: ...
