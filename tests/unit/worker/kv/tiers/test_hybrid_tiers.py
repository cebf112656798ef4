"""Stores below the pools of models with windows, recurrent layers, and blocks in shards."""

from pathlib import Path
from typing import Any

import pytest

from baton.engine.kv.block_hash import hash_blocks
from baton.worker.kv.stored_keys import block_key, shard_keys
from baton.worker.kv.tier import Tier
from tests.checkpoints import make_checkpoint
from tests.unit.worker.kv.tiers.tier_rig import BLOCK_SIZE, PROMPT, DictStore, Rig

WINDOWS: dict[str, Any] = {
    "hybrid_kv_cache": True,
    "kv_cache_memory_bytes": 1 << 21,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
}
STATES: dict[str, Any] = {"state_checkpoint_tokens": 64, "kv_cache_memory_bytes": 1 << 22}
LONGER = [*PROMPT, *range(210, 250)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("hybrid")
    return {name: make_checkpoint(name, directory / name) for name in ("gemma3", "qwen3-next", "qwen3")}


async def fill(model: Path, **options: Any) -> tuple[DictStore, list[int], list[int]]:
    """Return a store with all that an engine saves of a prompt, and the tokens after it and after a longer one."""
    store, rig = DictStore(), Rig(model, **options)
    rig.tiers.append(Tier(store))
    tokens = await rig.generate(PROMPT)
    await rig.close()
    plain = Rig(model, **options)
    longer = await plain.generate(LONGER)
    await plain.close()
    return store, tokens, longer


@pytest.mark.parametrize(("name", "options"), [("gemma3", WINDOWS), ("qwen3-next", STATES)])
async def test_tokens_are_the_same_after_a_fetch(models: dict[str, Path], name: str, options: dict[str, Any]) -> None:
    """Of the windows, only the last blocks are read; of the states, that of the last checkpoint."""
    store, tokens, longer = await fill(models[name], **options)
    rig = Rig(models[name], store, **options)
    groups, num_blocks = rig.host.kv_groups, 10 if name == "gemma3" else 8
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [num_blocks * BLOCK_SIZE]
    assert len(store.reads) == groups.transfer_order(num_blocks * BLOCK_SIZE).num_blocks
    await rig.host.call(lambda engine: engine.blocks.cache.clear())
    assert await rig.generate(LONGER) == longer
    assert rig.received[1] == num_blocks * BLOCK_SIZE
    await rig.close()


@pytest.mark.parametrize(("name", "options"), [("gemma3", WINDOWS), ("qwen3-next", STATES)])
async def test_a_shorter_prefix_is_fetched_if_the_rest_is_missing(
    models: dict[str, Path], name: str, options: dict[str, Any]
) -> None:
    """A block of the last window, or of the last checkpoint's state, is gone."""
    store, tokens, _ = await fill(models[name], **options)
    hashes = hash_blocks(PROMPT, BLOCK_SIZE)
    del store.blocks[block_key(hashes[9 if name == "gemma3" else 7], 1)]
    rig = Rig(models[name], store, **options)
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [9 * BLOCK_SIZE if name == "gemma3" else 4 * BLOCK_SIZE]
    await rig.close()


@pytest.mark.parametrize(("name", "options"), [("gemma3", WINDOWS), ("qwen3-next", STATES)])
async def test_a_read_that_fails_leaves_the_prompt_to_compute(
    models: dict[str, Path], name: str, options: dict[str, Any]
) -> None:
    """A prefix without its windows or its state is of no use."""
    store, tokens, _ = await fill(models[name], **options)
    store.fails_at.add(block_key(hash_blocks(PROMPT, BLOCK_SIZE)[9 if name == "gemma3" else 7], 1))
    rig = Rig(models[name], store, **options)
    assert await rig.generate(PROMPT) == tokens
    assert rig.received == [0]
    await rig.close()


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gemma3", WINDOWS),
        ("qwen3-next", STATES),
        ("qwen3", {"kv_shards": 2}),
        ("qwen3", {"kv_cache_dtype": "int8"}),
        ("qwen3", {"kv_cache_dtype": "int4"}),
    ],
)
async def test_blocks_of_host_memory_and_damaged_ones_that_are_read_into_the_pool(
    models: dict[str, Path], name: str, options: dict[str, Any], is_first: bool
) -> None:
    """A damaged block has reached the pool when its checksum is wrong."""
    store, tokens, longer = await fill(models[name], **options)
    rig = Rig(models[name], store, **options)
    rig.tiers[0].is_memory = True
    assert await rig.generate(PROMPT) == tokens
    num_read = len(store.reads)
    await rig.host.call(lambda engine: engine.blocks.cache.clear())
    store.is_damaged_at.add(store.reads[0 if is_first else -1])
    assert await rig.generate(LONGER) == longer
    assert len(store.reads) == num_read + (1 if is_first else num_read)
    await rig.host.call(lambda engine: engine.blocks.cache.clear())
    store.is_damaged_at.clear()
    assert await rig.generate(LONGER) == longer
    assert rig.received[-1] >= rig.received[0] > 0
    await rig.close()


async def test_windows_that_are_missing_at_length_are_skipped(models: dict[str, Path]) -> None:
    """Only the first blocks have all groups, as if the others had left the pool before they were saved."""
    store, tokens, _ = await fill(models["gemma3"], **WINDOWS)
    hashes = hash_blocks(PROMPT, BLOCK_SIZE)
    for block_hash in hashes[5:]:
        for number in (1, 2, 3):
            store.blocks.pop(block_key(block_hash, number), None)
    rig = Rig(models["gemma3"], store, **WINDOWS)
    assert await rig.generate(PROMPT) == tokens
    assert 2 * BLOCK_SIZE <= rig.received[0] <= 5 * BLOCK_SIZE
    assert store.num_lookups < 12
    await rig.close()


async def test_each_shard_of_a_block_has_a_key(models: dict[str, Path]) -> None:
    """Workers with as many shards find them, however many ranks they have."""
    store, tokens, longer = await fill(models["qwen3"], kv_shards=2)
    hashes = hash_blocks([*PROMPT, *tokens[:-1]], BLOCK_SIZE)
    assert store.blocks.keys() == set(shard_keys(hashes, range(2), 2))
    rig = Rig(models["qwen3"], store, kv_shards=2)
    assert await rig.generate(PROMPT) == tokens
    del store.blocks[shard_keys([hashes[6]], range(1, 2), 2)[0]]
    await rig.host.call(lambda engine: engine.blocks.cache.clear())
    assert await rig.generate(LONGER) == longer
    assert rig.received == [160, 96]
    await rig.close()
