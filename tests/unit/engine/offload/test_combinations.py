"""Weights offload together with other options: outputs stay the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.engine.request import Request, RequestId
from baton.settings.values import parse_json
from tests.adapters import make_adapter
from tests.checkpoints import make_checkpoint
from tests.marks import slow_except
from tests.unit.engine.lora.lora_rig import request
from tests.unit.engine.offload.offload_rig import SHARED, config_of, outputs, requests, running

OPTIONS: dict[str, dict[str, Any]] = {
    "drafts": {"speculative_config": parse_json('{"method": "ngram", "num_speculative_tokens": 4}')},
    "preemption": {"kv_cache_memory_bytes": 1 << 17},
    "launched ahead": {"async_scheduling": True},
    "int8 KV": {"kv_cache_dtype": "int8"},
    "mixed": {"async_scheduling": True, "max_num_batched_tokens": 16, "enable_prefix_caching": False},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("model") / "model", num_hidden_layers=6)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3-moe", tmp_path_factory.mktemp("mixture") / "model")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def offloaded(directory: Path) -> dict[str, Any]:
    return {"weights_offload": "disk", "weights_offload_dir": str(directory), "weights_memory_bytes": 300_000}


def load() -> list[Request]:
    """Return requests of which some have prompts that repeat themselves."""
    repeating = [replace(each, request_id=RequestId(f"again-{each.request_id}")) for each in requests(3)]
    for each in repeating:
        each.token_ids = SHARED[:20] * 2
        each.num_prompt_tokens = len(each.token_ids)
    return [*requests(6, max_tokens=20), *repeating]


@pytest.mark.parametrize("name", slow_except(OPTIONS, ("drafts", "preemption")))
def test_outputs_are_equal(model: Path, directory: Path, name: str) -> None:
    options = OPTIONS[name] | {"max_num_seqs": 8}
    with running(config_of(model, **options)) as engine:
        expected = outputs(engine, load())
        preemptions = engine.stats().num_preemptions
        fingerprint = engine.fingerprint
    assert preemptions > 0 or name != "preemption"
    with running(config_of(model, **options, **offloaded(directory))) as engine:
        assert outputs(engine, load()) == expected
        assert engine.fingerprint == fingerprint, "it hands KV over to workers without offload"
        assert engine.stats().offload.num_read_bytes > 0


def test_adapters_change_outputs_as_without(model: Path, directory: Path, tmp_path: Path) -> None:
    adapter = make_adapter(model, tmp_path / "adapter", seed=1)

    def of_engine(**options: Any) -> Any:
        with running(config_of(model, enable_lora=True, **options)) as engine:
            engine.adapters.load("a", adapter)
            return outputs(engine, [request("plain", SHARED), request("adapted", SHARED, "a")])

    expected = of_engine()
    assert expected["plain"] != expected["adapted"]
    assert of_engine(**offloaded(directory)) == expected


@pytest.mark.slow
def test_adapters_of_experts_that_are_not_all_in_memory(mixture: Path, directory: Path, tmp_path: Path) -> None:
    adapter = make_adapter(mixture, tmp_path / "adapter", ["gate_proj", "down_proj", "q_proj"], seed=1)

    def of_engine(**options: Any) -> Any:
        with running(config_of(mixture, enable_lora=True, **options)) as engine:
            engine.adapters.load("a", adapter)
            found = outputs(engine, [request("plain", SHARED), request("adapted", SHARED, "a")])
            return found, engine.stats().offload.num_expert_misses

    expected, _ = of_engine()
    assert expected["plain"] != expected["adapted"]
    found, num_misses = of_engine(**offloaded(directory) | {"expert_cache_bytes": 120_000})
    assert found == expected
    assert num_misses > 0
