"""Options of an LLM: names of `baton serve` and of vLLM, what it sets itself, and their config file."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.deployment.local.cluster_config import load_settings
from baton.offline.options import read_options
from baton.settings.values import OptionError


def options(num_prefill: int = 1, num_decode: int = 1, **given: object) -> Any:
    """Read the options of an LLM with the bundled model."""
    return read_options(None, num_prefill, num_decode, None, given)


def test_the_config_file_has_each_option_in_its_section(tmp_path: Path) -> None:
    found = options(
        2,
        3,
        tensor_parallel_size=2,
        kv_cache_dtype="int8",
        max_model_len=2048,
        max_num_seqs=8,
        speculative_config={"method": "ngram"},
        policy="least_loaded",
        lora_modules=["a=/a"],
        enable_lora=True,
        kv_host_memory_bytes="1MiB",
    )
    file = tmp_path / "config.json"
    file.write_text(json.dumps(found.content()))
    settings = load_settings(file, {})
    assert settings.cluster.num_workers == {"prefill": 2, "decode": 3, "both": 0}
    assert (settings.cluster.tensor_parallel, settings.cluster.prefill_tensor_parallel) == (2, 2)
    engine = settings.engine["decode"]
    assert (engine["kv_cache_dtype"], engine["max_model_len"], engine["max_num_seqs"]) == ("int8", 2048, 8)
    assert engine["speculative_config"] == '{"method": "ngram"}'
    assert settings.router["policy"] == "least_loaded"
    assert settings.router["lora_modules"] == ("a=/a",)
    assert settings.router["api_key"] == (found.key,)
    assert settings.worker["kv_host_memory_bytes"] == 1 << 20
    assert found.max_num_seqs == 8


def test_without_prefill_workers_the_decode_workers_are_colocated(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(options(0, 2).content()))
    assert load_settings(file, {}).cluster.num_workers == {"prefill": 0, "decode": 0, "both": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_model_length": 5}, "max_model_length: unknown option; did you mean max_model_len"),
        ({"dtype": "int3"}, "dtype: 'int3' is not allowed"),
        ({"port": 8000}, "port: an LLM serves no clients"),
        ({"api_key": "x"}, "api_key: an LLM serves no clients"),
        ({"prefill": 2}, "prefill: set num_prefill instead"),
        ({"trust_remote_code": True}, "trust_remote_code: code in a checkpoint is never run"),
        ({"tokenizer_mode": "slow"}, "tokenizer_mode: only 'auto' is supported"),
        ({"num_decode": 0}, "num_decode 0, but they must be at least 0 and 1"),
    ],
)
def test_an_invalid_option_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options(**given)


def test_switches_of_vllm_with_their_only_value_are_accepted() -> None:
    found = options(trust_remote_code=False, enable_chunked_prefill=True, tokenizer_mode="auto")
    assert "trust_remote_code" not in found.values


def test_a_model_that_does_not_exist_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="neither a directory, a GGUF file nor a hub id"):
        read_options("/no/such/model", 1, 1, None, {}).checkpoint()


def test_a_checkpoint_that_was_found_replaces_names_of_the_hub() -> None:
    found = options(served_model_name="mine")
    checkpoint = found.checkpoint()
    values = found.at(checkpoint).values
    assert values["model"] == str(checkpoint.directory)
    assert values["served_model_name"] == "mine"


def test_paths_may_be_path_objects_and_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = read_options(tmp_path / "model", 1, 1, Path("~/logs"), {})
    assert json.loads(json.dumps(found.content()))["model"] == str(tmp_path / "model")
    assert found.log_dir == str(tmp_path / "logs")
    assert read_options(None, 1, 1, "~/logs", {}).log_dir == str(tmp_path / "logs")


def test_workers_that_do_not_divide_into_groups_are_an_error_before_the_start() -> None:
    with pytest.raises(OptionError, match="3 workers do not divide into groups of 2"):
        options(1, 3, expert_parallel=2).checkpoint()
