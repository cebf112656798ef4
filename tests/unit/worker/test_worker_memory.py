"""Requested memory compared with free memory."""

from dataclasses import replace
from pathlib import Path

import pytest

from baton.cli.options.model_source import BUNDLED
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.weight_memory import num_parameters, weights_bytes
from baton.engine.config import EngineConfig
from baton.engine.kv.capacity import PoolSize
from baton.engine.kv.dtype import default_kv_bytes, kv_bytes_per_token
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.speculation.draft_checkpoint import DraftCheckpoint
from baton.process.host_memory import HostMemory
from baton.settings.names import Role
from baton.settings.values import OptionError, parse_json
from baton.worker.config import WorkerConfig
from baton.worker.memory import memory_need, with_kv_memory, with_weights_memory
from tests.checkpoints import make_checkpoint
from tests.unit.engine.fp8_writer import FORMATS, write_fp8

MODEL = read_model_config(BUNDLED)
GIB, MIB = 1 << 30, 1 << 20


def worker(kv_bytes: int | None, role: Role = "decode", device: str = "cpu", ranks: int = 1) -> WorkerConfig:
    engine = EngineConfig(model=str(BUNDLED), device=device, kv_cache_memory_bytes=kv_bytes)
    return WorkerConfig(role=role, worker_id=f"{role}-0", engine=engine, tensor_parallel=ranks)


def test_weights_are_counted_in_the_compute_dtype() -> None:
    count = num_parameters(BUNDLED, MODEL)
    assert count == 4_991_744
    embedding = MODEL.vocab_size * MODEL.hidden_size  # the output layer has a copy
    assert MODEL.tie_word_embeddings
    assert weights_bytes(BUNDLED, MODEL, None) == 2 * (count + embedding)
    assert weights_bytes(BUNDLED, replace(MODEL, dtype="float32"), None) == 4 * (count + embedding)
    assert weights_bytes(BUNDLED, replace(MODEL, dtype="float16"), None) == 2 * (count + embedding)
    assert weights_bytes(BUNDLED, MODEL, "int8") == count + 2 * embedding, "the embedding itself stays in bfloat16"


def test_weights_outside_of_layers_are_embedding_and_output_layer() -> None:
    embedding, norm = MODEL.vocab_size * MODEL.hidden_size, MODEL.hidden_size
    assert weights_bytes(BUNDLED, MODEL, None, outside_of_layers=True) == 2 * (2 * embedding + norm)
    assert weights_bytes(BUNDLED, MODEL, "int8", outside_of_layers=True) == 3 * embedding + norm


def test_weights_in_fp8_are_counted_as_they_are_dequantised(tmp_path: Path) -> None:
    source = make_checkpoint("qwen3", tmp_path / "source")
    directory = write_fp8(source, tmp_path, FORMATS["channel"]).fp8
    model = read_model_config(directory)
    assert weights_bytes(directory, model, None) == weights_bytes(source, replace(model, dtype="bfloat16"), None)


def test_a_stored_output_layer_that_is_tied_is_not_counted(tmp_path: Path) -> None:
    untied = make_checkpoint("qwen3", tmp_path / "untied", tie_word_embeddings=False)
    model = read_model_config(untied)
    tied = replace(model, tie_word_embeddings=True)
    embedding = model.vocab_size * model.hidden_size
    assert num_parameters(untied, tied) == num_parameters(untied, model) - embedding
    assert weights_bytes(untied, tied, None) == weights_bytes(untied, model, None)


def test_speculative_layers_are_not_loaded() -> None:
    shorter = replace(MODEL, num_layers=MODEL.num_layers - 1, num_nextn_predict_layers=1)
    assert num_parameters(BUNDLED, shorter) < num_parameters(BUNDLED, MODEL)


def test_a_draft_model_takes_its_weights_and_a_part_of_the_kv_cache() -> None:
    """Here it is the model itself, so that both are doubled."""
    plain = replace(worker(None).engine, max_num_seqs=1, max_model_len=1 << 12)
    drafting = replace(plain, speculative_config=parse_json(f'{{"model": "{BUNDLED}"}}'))
    needs = [memory_need([replace(worker(None), engine=each)], MODEL) for each in (plain, drafting)]
    assert needs[1].weights_bytes == 2 * needs[0].weights_bytes
    sized = replace(drafting, kv_cache_memory_bytes=GIB)
    node = memory_need([replace(worker(None, ranks=4), engine=sized, nnodes=2)], MODEL)
    assert node.weights_bytes == needs[0].weights_bytes // 2 + needs[0].weights_bytes, "the draft model is not divided"
    draft = DraftCheckpoint.of(drafting, MODEL)
    assert draft is not None
    assert draft.token_bytes == kv_bytes_per_token(MODEL)
    large = replace(drafting, max_num_seqs=64)
    kv_bytes = [default_kv_bytes(1 << 50, 1, MODEL, large, each) for each in (0, draft.token_bytes)]
    assert kv_bytes[1] == 2 * kv_bytes[0]
    groups, layout = KVGroups(16), KVCacheLayout.of(MODEL, 16)
    sizes = [PoolSize.in_bytes(1 << 28, large, MODEL, layout, groups, each) for each in (0, draft.block_bytes)]
    assert sizes[0].num_blocks == 2 * sizes[1].num_blocks


def test_all_workers_together_must_fit() -> None:
    workers = [worker(3 * GIB, "prefill"), worker(3 * GIB)]
    need = memory_need(workers, MODEL)
    assert (need.num_pools, need.kv_bytes) == (2, 6 * GIB)
    assert need.weights_bytes == 2 * weights_bytes(BUNDLED, MODEL, None)
    need.check(HostMemory(7 * GIB, is_limited=False))
    with pytest.raises(OptionError) as raised:
        need.check(HostMemory(5 * GIB, is_limited=True))
    assert str(raised.value) == (
        "kv_cache_memory_bytes: 2 KV caches of 6.0 GiB together and 23 MiB of weights do not fit: 5.0 GiB is free "
        "(control group's limit); 2548MiB each would fit"
    )
    with pytest.raises(OptionError, match="model: its weights take 23 MiB in all workers together, but 10 MiB is free"):
        need.check(HostMemory(10 * MIB, is_limited=False))


def test_a_node_has_the_weights_and_caches_of_its_ranks() -> None:
    need = memory_need([replace(worker(GIB, ranks=4), nnodes=2)], MODEL)
    assert (need.num_pools, need.kv_bytes) == (2, 2 * GIB)
    assert need.weights_bytes == weights_bytes(BUNDLED, MODEL, None) // 2


def test_each_rank_has_a_cache_of_the_configured_size() -> None:
    need = memory_need([worker(GIB, ranks=2)], MODEL)
    assert (need.num_pools, need.kv_bytes, need.weights_bytes) == (2, 2 * GIB, weights_bytes(BUNDLED, MODEL, None))


def test_workers_on_gpus_count_no_host_memory() -> None:
    assert memory_need([worker(900 * GIB, device="cuda")], MODEL).kv_bytes == 0
    assert with_kv_memory(worker(None, device="cuda"), HostMemory(GIB, False)).engine.kv_cache_memory_bytes is None


def test_the_default_size_is_a_share_of_the_free_memory() -> None:
    sized = with_kv_memory(worker(None), HostMemory(2 * GIB, is_limited=False))
    assert sized.engine.kv_cache_memory_bytes == 256 * MIB
    fullest = 64 * MODEL.max_model_len * kv_bytes_per_token(MODEL)  # a batch of the longest requests
    assert with_kv_memory(worker(None), HostMemory(1 << 40, False)).engine.kv_cache_memory_bytes == min(
        4 * GIB, fullest
    )
    with pytest.raises(OptionError, match=r"a KV cache of 900\.0 GiB and 12 MiB of weights do not fit"):
        with_kv_memory(worker(900 * GIB), HostMemory(2 * GIB, is_limited=False))


def test_the_store_in_host_memory_is_counted_once() -> None:
    workers = [replace(worker(64 * MIB), kv_host_memory_bytes=GIB) for _ in range(2)]
    need = memory_need(workers, MODEL)
    assert need.store_bytes == GIB
    need.check(HostMemory(GIB + 256 * MIB, False))
    with pytest.raises(OptionError, match=r"next to 1\.0 GiB of kv_host_memory_bytes do not fit.*MiB each would"):
        need.check(HostMemory(GIB + 100 * MIB, False))
    with pytest.raises(OptionError, match=r"^kv_host_memory_bytes: 1\.0 GiB do not fit next to"):
        need.check(HostMemory(GIB, False))
    plain, stored = (
        with_kv_memory(replace(worker(None), kv_host_memory_bytes=size), HostMemory(2 * GIB, False))
        for size in (None, GIB)
    )
    assert (stored.engine.kv_cache_memory_bytes or 0) < (plain.engine.kv_cache_memory_bytes or 0)


def offloaded(kv_bytes: int | None = None, weights_bytes: int | None = None) -> WorkerConfig:
    plain = worker(kv_bytes)
    engine = replace(plain.engine, weights_offload="disk", weights_memory_bytes=weights_bytes)
    return replace(plain, engine=engine)


def test_offloaded_weights_count_up_to_their_memory() -> None:
    assert memory_need([offloaded(weights_bytes=MIB)], MODEL).weights_bytes == MIB
    assert memory_need([offloaded(weights_bytes=GIB)], MODEL).weights_bytes == weights_bytes(BUNDLED, MODEL, None)


def test_offloaded_weights_get_what_the_kv_cache_leaves() -> None:
    sized = with_kv_memory(offloaded(128 * MIB), HostMemory(150 * MIB, is_limited=False))
    assert sized.engine.weights_memory_bytes == 7 * MIB
    plenty = with_kv_memory(offloaded(128 * MIB), HostMemory(GIB, is_limited=False))
    assert plenty.engine.weights_memory_bytes is None, "all of them fit"
    shared = with_weights_memory(offloaded(32 * MIB).engine, MODEL, 80 * MIB, num_workers=2)
    assert shared.weights_memory_bytes == 4 * MIB
    plain = with_weights_memory(worker(32 * MIB).engine, MODEL, 80 * MIB, num_workers=2)
    assert plain.weights_memory_bytes is None


def test_offloaded_weights_leave_memory_for_those_of_a_draft() -> None:
    config = offloaded(128 * MIB)
    drafting = replace(config.engine, speculative_config=parse_json(f'{{"model": "{BUNDLED}"}}'))
    draft = DraftCheckpoint.of(drafting, MODEL)
    assert draft is not None
    memory = HostMemory(165 * MIB, is_limited=False)
    plain, sized = (with_kv_memory(replace(config, engine=each), memory) for each in (config.engine, drafting))
    assert plain.engine.weights_memory_bytes is None
    assert sized.engine.weights_memory_bytes == int(165 * MIB * 0.9) - 128 * MIB - draft.weights_bytes
