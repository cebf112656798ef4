"""Ranks that do not fit to the first one."""

from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.config import EngineConfig
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from baton.worker.ranks.hello import hello_of, refusal_of
from tests.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> WorkerConfig:
    model = make_checkpoint("llama3", tmp_path_factory.mktemp("hello") / "model")
    engine = EngineConfig(model=str(model), device="cuda", num_threads=1)
    return WorkerConfig(role="decode", worker_id="w", engine=engine, tensor_parallel=4, nnodes=2)


def test_ranks_with_the_same_options_fit_wherever_they_are(config: WorkerConfig, tmp_path: Path) -> None:
    copy = make_checkpoint("llama3", tmp_path / "copy")
    engine = replace(config.engine, model=str(copy), device="cuda:1", num_threads=7, cores="0-3")
    elsewhere = replace(config, engine=engine, node_rank=1, host="127.0.0.2", worker_id="other")
    for rank in (1, 3):
        assert refusal_of(hello_of(elsewhere, rank), hello_of(config, 0)) is None
    with_tokenizer = replace(config, engine=replace(config.engine, tokenizer=str(copy)))
    assert refusal_of(hello_of(with_tokenizer, 1), hello_of(config, 0)) is None


def test_a_difference_is_named_with_both_values(config: WorkerConfig, tmp_path: Path) -> None:
    first = hello_of(config, 0)
    other = make_checkpoint("qwen3", tmp_path / "other")
    engine = config.engine
    for theirs, expected in (
        (replace(config, tensor_parallel=8), "tensor_parallel is '8' on rank 2 and '4' on rank 0; set the same on all"),
        (replace(config, nnodes=4), "nnodes is '4' on rank 2 and '2' on rank 0"),
        (replace(config, engine=replace(engine, block_size=32)), "block_size is '32' on rank 2 and '16' on rank 0"),
        (replace(config, engine=replace(engine, model=str(other))), "model is 'Qwen3ForCausalLM (3-"),
    ):
        refusal = refusal_of(hello_of(theirs, 2), first)
        assert refusal is not None
        assert refusal.startswith(expected)
    older = hello_of(config, 2)
    older.options["version"] = "0.0.1"
    assert str(refusal_of(older, first)).startswith("version is '0.0.1' on rank 2 and '")
    del older.options["version"]
    assert str(refusal_of(older, first)).startswith("version is none on rank 2")
    assert refusal_of(hello_of(config, 4), first) == "there is no rank 4 to connect; the ranks are 1 to 3"
    assert refusal_of(hello_of(config, 0), first) == "there is no rank 0 to connect; the ranks are 1 to 3"


def test_options_of_nodes_are_checked(config: WorkerConfig) -> None:
    assert (list(config.ranks_here), list(replace(config, node_rank=1).ranks_here)) == ([0, 1], [2, 3])
    assert list(replace(config, node_rank=1, transport="nixl", kv_port=7000).kv_ports) == [7000, 7001]
    assert replace(config, node_rank=1, host="127.0.0.2", port=29501).port == 29501  # only node 0 listens there
    for changes, expected in (
        ({"node_rank": 2}, "node_rank: 2, but nnodes is 2; set 0 to 1"),
        ({"tensor_parallel": 3}, "nnodes: 2 nodes cannot have equal shares of 3 ranks; set tensor_parallel to a multi"),
        ({"master_addr": "10.0.0.1"}, "host: other nodes cannot reach 127.0.0.1; set this node's address"),
        ({"host": "0.0.0.0"}, "host: other nodes cannot reach 0.0.0.0; set this node's address"),
        ({"node_rank": 1, "host": "10.0.0.2"}, "master_addr: 127.0.0.1 is this node itself; set the host of node 0"),
        ({"node_rank": 1, "master_port": 0}, "master_port: 0; set the port at which node 0 waits"),
        ({"port": 29501}, "master_port: 29501 is already used by port, metrics_port or kv_port; choose another"),
        ({"metrics_port": 29501}, "master_port: 29501 is already used by port, metrics_port or kv_port"),
        ({"transport": "nixl", "kv_port": 29500}, "master_port: 29501 is already used by port, metrics_port or kv_p"),
        ({"engine": replace(config.engine, device="cpu")}, "kv_cache_memory_bytes: missing; nodes without GPUs"),
    ):
        with pytest.raises(OptionError, match=expected):
            replace(config, **changes)
