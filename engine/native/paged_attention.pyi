from collections.abc import Sequence

def instruction_sets() -> list[str]:
    """Return the kernels that this processor can run, fastest first."""

class Rows:
    """A tensor [num_tokens, num_heads, width] whose last dimension is contiguous; strides in bytes; data 0: none."""

    def __init__(self, data: int, token_stride: int, head_stride: int) -> None: ...

class Cache:
    """A layer's part of the KV pool; strides in bytes."""

    def __init__(
        self,
        data: int,
        num_blocks: int,
        heads_per_part: int,
        block_stride: int,
        part_stride: int,
        value_offset: int,
        head_stride: int,
        token_stride: int,
    ) -> None: ...

class Span:
    """Earlier tokens that a token attends to; width 0: all of them."""

    def __init__(self, *, width: int, is_chunked: bool) -> None: ...

class PagedAttention:
    """Attention on raw pointers: plans a step, then runs layer by layer. Raises ValueError for invalid arguments."""

    def __init__(
        self,
        *,
        scale: float,
        block_size: int,
        num_heads: int,
        num_kv_heads: int,
        key_width: int,
        value_width: int,
        is_bfloat16: bool,
        is_quantised: bool = False,
        is_int4: bool = False,
        soft_cap: float = 0.0,
        instructions: str,
    ) -> None: ...
    def plan(
        self,
        *,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_tables: int,
        max_blocks: int,
        slots: int,
        num_slots: int,
        num_threads: int,
    ) -> None: ...
    def forward(
        self,
        queries: Rows,
        keys: Rows,
        values: Rows,
        cache: Cache,
        results: Rows,
        num_tokens: int,
        span: Span,
        sinks: int,
    ) -> None: ...
