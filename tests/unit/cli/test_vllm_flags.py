"""Options and keys with vLLM's names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from baton.__main__ import main
from baton.cli.router import command as router
from baton.cli.serve import command as serve
from baton.cli.worker import command as worker
from baton.deployment.local.cluster_config import ClusterConfig, load_settings
from baton.settings.values import OptionError
from tests.unit.cli.test_cli import QWEN3, free_port

NOWHERE = "/nowhere/model"
ALWAYS_ON = "--enable-chunked-prefill is always on"
VLLM_NAMES = (
    *("--model", "--tensor-parallel-size", "-tp", "--enable-expert-parallel", "--enable-eplb", "--max-model-len"),
    *("--gpu-memory-utilization", "--max-num-seqs", "--max-num-batched-tokens", "--block-size", "--dtype"),
    *("--quantization", "-q", "--kv-cache-dtype", "--enable-prefix-caching", "--enable-chunked-prefill"),
    *("--tool-call-parser", "--reasoning-parser", "--enable-auto-tool-choice", "--exclude-tools-when-tool-choice-none"),
    *("--served-model-name", "--host", "--port", "--api-key", "--ssl-keyfile", "--ssl-certfile", "--enforce-eager"),
    *("--api-server-count", "-asc", "--allowed-origins", "--shutdown-timeout", "--async-scheduling"),
    *("--revision", "--tokenizer", "--tokenizer-revision", "--hf-overrides"),
)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """Write a checkpoint of a dense model, with only the files that `baton serve` reads before it starts anything."""
    directory = tmp_path / "dense"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(QWEN3))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"")
    return directory


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_serve_has_vllms_names() -> None:
    known = {flag for parameter in serve.params for flag in parameter.opts}
    assert set(VLLM_NAMES) - known == set()
    of_worker = {flag for parameter in worker.params for flag in parameter.opts}
    assert {"--model", "--tensor-parallel-size", "-tp", "-q", "--enable-chunked-prefill"} - of_worker == set()
    of_router = {flag for parameter in router.params for flag in parameter.opts}
    assert {"--model", "--api-server-count", "-asc", "--allowed-origins", "--shutdown-timeout"} - of_router == set()


@pytest.mark.parametrize("flag", ["--tensor-parallel-size=0", "-tp=0"])
def test_an_alias_has_the_bounds_of_its_option(flag: str) -> None:
    result = run("serve", flag)
    assert result.exit_code == 2
    assert "must be a whole number from 1 to 64" in result.output


def test_a_file_may_have_vllms_keys(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("tensor-parallel-size: 2\nenable_expert_parallel: true\nprefill_tensor_parallel: 4\n")
    cluster = load_settings(file, {}).cluster
    assert cluster == ClusterConfig(tensor_parallel=2, enable_expert_parallel=True, prefill_tensor_parallel=4)
    assert (cluster.num_expert_ranks("decode"), cluster.num_expert_ranks("prefill")) == (2, 4)
    file.write_text("tensor_parallel_size: 2\ntensor_parallel: 2\n")
    with pytest.raises(OptionError, match="given twice, under the names tensor_parallel and tensor_parallel_size"):
        load_settings(file, {})
    file.write_text("tensor_parallel_sise: 2\n")
    with pytest.raises(OptionError, match="did you mean tensor_parallel_size"):
        load_settings(file, {})


def test_an_option_that_is_always_on_is_accepted_with_a_message() -> None:
    for command in ("serve", "worker", "router"):
        result = run(command, "--enable-chunked-prefill", "--port=-1")
        assert ALWAYS_ON in result.output
        assert ALWAYS_ON not in run(command, "--port=-1").output


def test_fixed_options_are_refused_with_the_reason() -> None:
    for command in ("serve", "worker", "router"):
        off = run(command, "--no-enable-chunked-prefill")
        assert off.exit_code == 2
        assert "--no-enable-chunked-prefill: prompts are always prefilled in chunks" in off.output
        trusted = run(command, "--trust-remote-code")
        assert trusted.exit_code == 2
        assert "--trust-remote-code: code in a checkpoint is never run" in trusted.output


def test_an_older_option_is_refused_with_the_one_that_replaces_it() -> None:
    for command in ("serve", "worker", "router"):
        result = run(command, "--rope-scaling", '{"rope_type": "yarn"}')
        assert result.exit_code == 2
        expected = (
            """--rope-scaling: vLLM has replaced it; use --hf-overrides '{"rope_scaling": {"rope_type": "yarn"}}'"""
        )
        assert expected in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "section"), [("allowed-origins: '*'", "router"), ("engine:\n  tensor_parallel_size: 2", "the top level")]
)
def test_vllms_key_in_the_wrong_section_gets_the_right_one_suggested(text: str, section: str, tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text(text)
    with pytest.raises(OptionError, match=f"unknown option here; it belongs under {section}$"):
        load_settings(file, {})


@pytest.mark.parametrize("command", ["serve", "worker", "router", "bench", "chat", "simulate"])
def test_two_different_models_are_refused(command: str) -> None:
    result = run(command, "this", "--model", "that")
    assert result.exit_code == 2
    assert "MODEL is this and --model is that; name the model once" in result.output


@pytest.mark.parametrize("words", [(NOWHERE,), ("--model", NOWHERE), (NOWHERE, "--model", NOWHERE)])
def test_argument_and_option_for_the_model_are_equivalent(words: tuple[str, ...], tmp_path: Path) -> None:
    assert f"{NOWHERE} is neither a directory" in run("serve", *words).output
    assert "workers: none" in run("router", *words).output
    assert "is neither a hub id" in run("fetch", *words, str(tmp_path / "new")).output


def test_fetch_needs_a_model_and_a_directory(tmp_path: Path) -> None:
    for words in ((), (str(tmp_path),), ("a/b", "c/d", str(tmp_path))):
        assert run("fetch", *words).exit_code == 2
    assert "--model is c/d" in run("fetch", "a/b", str(tmp_path), "--model", "c/d").output


@pytest.mark.parametrize("flags", [("--expert-parallel=2",), ("-tp=2", "--enable-expert-parallel")])
def test_experts_of_a_dense_model_are_refused_before_anything_starts(flags: tuple[str, ...], dense: Path) -> None:
    result = run("serve", str(dense), "--port", free_port(), *flags)
    assert result.exit_code == 2
    assert "expert_parallel: dense is a dense model without experts to spread" in result.output


@pytest.mark.parametrize("flags", [("--expert-parallel=2",), ("-tp=2", "--enable-expert-parallel")])
def test_a_worker_refuses_experts_of_a_dense_model_too(flags: tuple[str, ...], dense: Path) -> None:
    argv = (sys.executable, "-m", "baton", "worker", str(dense), "--rendezvous=127.0.0.1:1", *flags)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "is a dense model without experts to spread" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_router_without_workers_is_refused(dense: Path) -> None:
    result = run("router", str(dense))
    assert result.exit_code == 2
    assert "workers: none given; set --workers" in result.output


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("sevre",), "Did you mean 'serve'?"),
        (("stats",), "Did you mean 'status'?"),
        (("serve", "--tensor-paralel-size", "2"), "--tensor-parallel-size"),
        (("serve", "--gpu-memory-utilisation", "1"), "--gpu-memory-utilization"),
    ],
)
def test_a_mistyped_name_gets_a_suggestion(arguments: tuple[str, ...], hint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert hint in result.output
    assert result.output.splitlines()[-1].startswith("Error: ")
