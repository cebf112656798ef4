"""Compare the compiled modules of an installed wheel with numpy and the standard library; needs no torch.

`scripts/release/check_aarch64.sh` runs it in an emulator.
"""

import platform

import numpy as np
from numpy.typing import NDArray

from baton.engine.kv.python_block_hash import chain_hashes as python_chain_hashes
from baton.engine.native import grouped_products, layer_ops, paged_attention, products
from baton.engine.native.block_hash import chain_hashes
from baton.router.index.native.prefix_index import CompiledIndex

Floats = NDArray[np.float32]
RANDOM = np.random.default_rng(1)
KINDS = {"float": 0}  # of numbers in grouped_products


def random(*shape: int) -> Floats:
    """Return normal numbers."""
    return RANDOM.standard_normal(shape, np.float32)


def close(found: Floats, expected: Floats) -> None:
    """Raise AssertionError unless two results differ by rounding alone."""
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def check_product(instructions: str, num_threads: int) -> None:
    """Check a product with codes of eight bits, from -128 to 127, in groups of 32."""
    codes = RANDOM.integers(0, 256, (48, 64), dtype=np.uint8)
    scales, rows, bias = random(48, 2), random(5, 64), random(48)
    numbers = (scales.ctypes.data, KINDS["float"], 2)
    product = grouped_products.GroupedProduct(
        instructions, codes.ctypes.data, 0, 8, False, 48, 64, numbers, None, None, None, None, 0
    )
    weight, result = np.empty((48, 64), np.float32), np.empty((5, 48), np.float32)
    product.decode(weight.ctypes.data)
    close(weight, (codes - np.float32(128)) * scales.repeat(32, axis=1))
    product.run(rows.ctypes.data, bias.ctypes.data, result.ctypes.data, 5, False, num_threads)
    close(result, rows @ weight.T + bias)


def check_norm(instructions: str) -> None:
    """Check an RMS norm."""
    rows, weight, result = random(7, 50), random(50), np.empty((7, 50), np.float32)
    pointers = rows.ctypes.data, 50, weight.ctypes.data, 1.0, result.ctypes.data
    layer_ops.Float32Ops(instructions).norm(*pointers, 7, 50, 1e-6, 2)
    close(result, rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-6) * (1 + weight))


def check_attention(instructions: str, num_threads: int) -> None:
    """Check causal attention of six tokens in two blocks, with two query heads on one KV head."""
    tokens, heads, width, block = 6, 2, 16, 4
    queries, keys, values = random(tokens, heads, width), random(tokens, 1, width), random(tokens, 1, width)
    cache, result = np.zeros((3, 2, 1, block, width), np.float32), np.empty((tokens, heads, width), np.float32)
    table, slots = np.array([[2, 0]], np.int64), np.array([8, 9, 10, 11, 0, 1], np.int64)
    kernel = paged_attention.PagedAttention(
        scale=width**-0.5, block_size=block, num_heads=heads, num_kv_heads=1, key_width=width, value_width=width,
        is_bfloat16=False, instructions=instructions,
    )  # fmt: skip
    kernel.plan(
        query_lens=[tokens], context_lens=[tokens], block_tables=table.ctypes.data, max_blocks=2,
        slots=slots.ctypes.data, num_slots=tokens, num_threads=num_threads,
    )  # fmt: skip
    by_block, by_part, by_head, by_token, _ = cache.strides
    pool = paged_attention.Cache(cache.ctypes.data, 3, 1, by_block, 0, by_part, by_head, by_token)
    rows = [paged_attention.Rows(each.ctypes.data, *each.strides[:2]) for each in (queries, keys, values, result)]
    span = paged_attention.Span(width=0, is_chunked=False)
    kernel.forward(rows[0], rows[1], rows[2], pool, rows[3], tokens, span, 0)
    scores = np.einsum("qhd,kd->hqk", queries, keys[:, 0]) * width**-0.5
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(2, keepdims=True))
    close(result, np.einsum("hqk,kd->qhd", weights / weights.sum(2, keepdims=True), values[:, 0]))


def check_hashes() -> None:
    """Check the hashes of blocks, and the index of them."""
    token_ids = RANDOM.integers(0, 2**31, 64).tolist()
    hashes = chain_hashes(b"p" * 16, token_ids, 16, 0)
    assert hashes == python_chain_hashes(b"p" * 16, token_ids, 16, 0)
    index = CompiledIndex()
    index.reset("a-worker")
    index.update("a-worker", b"", hashes[:48])
    assert index.match(hashes) == {"a-worker": 3}


def main() -> None:
    """Check all modules with each instruction set of this processor."""
    found = paged_attention.instruction_sets()
    for num_threads in (1, 3):
        for instructions in found:
            check_attention(instructions, num_threads)
        for instructions in grouped_products.instruction_sets():
            check_product(instructions, num_threads)
    for instructions in layer_ops.instruction_sets():
        check_norm(instructions)
    check_hashes()
    print(f"{platform.machine()}: attention {found}, products {products.instruction_sets()}: as numpy")


if __name__ == "__main__":
    main()
