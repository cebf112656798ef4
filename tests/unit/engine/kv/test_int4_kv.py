"""Int4 KV: size of blocks, rejected models and devices, and how far its output is from that of plain KV."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.errors import UnsupportedModel
from baton.engine.kv.capacity import num_blocks_in
from baton.engine.kv.dtype import kv_bytes_per_token, kv_cache_dtype
from baton.engine.kv.layout import KVCacheLayout
from tests.checkpoints import make_checkpoint
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.perplexity import BUNDLED, TEXT, logits_of


def test_a_token_takes_half_a_byte_an_element_and_its_scales() -> None:
    config = read_model_config(BUNDLED)
    num_rows = config.num_layers * 2 * config.num_kv_heads
    assert kv_bytes_per_token(config, "int4") == num_rows * (config.head_dim // 2 + 4)
    layout, usual = KVCacheLayout.of(config, 16, kv_dtype="int4"), KVCacheLayout.of(config, 16)
    assert layout.block_bytes == 16 * kv_bytes_per_token(config, "int4")
    ratio = usual.block_bytes / layout.block_bytes
    assert ratio > 3
    assert num_blocks_in(1 << 24, layout) == pytest.approx(ratio * num_blocks_in(1 << 24, usual), rel=0.01)


def test_models_and_devices_that_cannot_have_it_are_refused(tmp_path: Path) -> None:
    config = read_model_config(BUNDLED)
    with pytest.raises(UnsupportedModel, match=r"'int4' .* int8, fp8 .int4 is not for heads of 33, an odd width"):
        kv_cache_dtype(replace(config, head_dim=33), "int4")
    with pytest.raises(UnsupportedModel, match=r"'int4' .* int8 .int4 and fp8 are not for multi-head latent attention"):
        kv_cache_dtype(read_model_config(make_checkpoint("deepseek-v3", tmp_path / "model")), "int4")
    with pytest.raises(UnsupportedModel, match="int4 is for CPUs, but the device is cuda:1: use auto, bfloat16 or fp8"):
        attention_for(config, 16, torch.device("cuda:1"), "int4")
    assert attention_for(config, 16, CPU, "int4") is not None


def test_most_greedy_tokens_are_those_of_plain_kv() -> None:
    tokens = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).encode(TEXT).ids
    plain, rough = (logits_of(PagedModel(BUNDLED, kv_dtype=each), tokens, 64).argmax(-1) for each in ("auto", "int4"))
    assert 0.8 < (plain == rough).float().mean() < 1
