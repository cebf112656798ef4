"""The layout of blocks: their bytes, shards of ranks, and views of a layer."""

from pathlib import Path

import pytest
import torch

from baton.engine.checkpoint.model_config import (
    read_model_config,
)
from baton.engine.kv.layout import KVCacheLayout
from baton.kvtransfer.block_slice import PartGroup
from tests.unit.engine.checkpoint.small_configs import DEEPSEEK_V2, LLAMA, write


def test_the_layout_counts_a_blocks_bytes(tmp_path: Path) -> None:
    config = read_model_config(write(tmp_path, LLAMA))
    layout = KVCacheLayout.of(config, 16)
    assert layout.pool_shape(5) == (5, 1, 3, 2, 4, 16, 16)
    assert layout.block_bytes == 3 * 2 * 4 * 16 * 16 * 2
    by_head = KVCacheLayout.of(config, 16, num_parts=4)
    assert by_head.pool_shape(5) == (5, 4, 3, 2, 1, 16, 16)
    assert by_head.block_bytes == layout.block_bytes
    latent = KVCacheLayout.of(read_model_config(write(tmp_path, DEEPSEEK_V2), "float32"), 16, num_parts=4, num_ranks=3)
    assert latent.pool_shape(5) == (5, 3, 16, 40)
    assert latent.block_bytes == 3 * 16 * 40 * 4
    assert latent.num_parts == 1


def test_ranks_hold_shards_of_every_block(tmp_path: Path) -> None:
    config = read_model_config(write(tmp_path, LLAMA))  # with 4 KV heads
    for num_parts, num_ranks, held in ((1, 1, 1), (2, 1, 2), (2, 2, 1), (4, 2, 2), (4, 8, 1)):
        layout = KVCacheLayout.of(config, 16, num_parts, num_ranks)
        assert layout.block_shape == (held, 3, 2, 4 // num_parts, 16, 16)
        assert layout.num_parts == held == PartGroup(num_parts, num_ranks).parts_per_rank
    for num_parts, num_ranks in ((3, 1), (0, 1), (8, 1), (4, 3), (2, 4), (1, 2), (4, 0)):
        with pytest.raises(ValueError, match="cannot be divided"):
            KVCacheLayout.of(config, 16, num_parts, num_ranks)


@pytest.mark.parametrize("num_parts", [1, 4])
def test_a_layers_keys_and_values_are_strided_views_and_a_shard_is_one_region(tmp_path: Path, num_parts: int) -> None:
    layout = KVCacheLayout.of(read_model_config(write(tmp_path, LLAMA)), 8, num_parts)
    pool = torch.zeros(layout.pool_shape(5), dtype=layout.dtype)
    # [num_blocks, num_kv_heads, block_size, head_dim]; a copy would fail
    keys, values = (each.view(5, 4, 8, 16) for each in KVCacheLayout.layer_cache(pool, 1).unbind(2))
    assert keys.stride() == values.stride()
    assert keys.stride()[2:] == (16, 1)
    keys[3, -1] = 1
    values[3, -1] = 2
    part = pool.view(5 * num_parts, -1)[4 * num_parts - 1]
    assert part.is_contiguous()
    assert part.nbytes * num_parts == layout.block_bytes
    assert float(part.sum()) == float(pool.sum()) == (1 + 2) * 8 * 16
