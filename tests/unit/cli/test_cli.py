"""The command line: help, and errors before anything starts."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

from baton.__main__ import COMMANDS, main
from baton.cli.options.model_source import find_checkpoint
from baton.deployment.local.cluster_config import ClusterConfig
from baton.deployment.local.ports import free_ports
from baton.engine.execution.visible_gpus import visible_gpus

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
    "hidden_act": "silu",
}


def free_port() -> str:
    """Return a free port for `baton serve`, which checks its port first: another server may use the default one."""
    return str(free_ports("127.0.0.1", 1)[0])


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(QWEN3))
    (directory / "tokenizer.json").write_text("{}")
    save_file({"model.embed_tokens.weight": np.zeros((32, 16), np.float32)}, directory / "model.safetensors")
    return directory


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", result.output, re.MULTILINE)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_hides_internal_options_of_processes(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0, result.output
    assert "fd" not in re.findall(r"--[a-z]+-(\w+)", result.output)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from baton.__main__ import main;"
        "assert CliRunner().invoke(main, ['serve', '--help']).exit_code == 0;"
        "print([name for name in ('torch', 'transformers', 'grpc', 'huggingface_hub') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_planning_a_start_imports_no_torch() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from baton.__main__ import main;"
        f"done = CliRunner().invoke(main, ['serve', '--port', '{free_port()}', '--kv-cache-memory-bytes', '900GiB']);"
        "assert 'would fit' in done.output, done.output;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_version_is_shown() -> None:
    assert re.fullmatch(r"baton, version \d+\.\d+\.\d+\n", run("--version").output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sevre"], "No such command 'sevre'"),
        (["serve", "--prefil", "1"], "--prefill"),
        (["serve", "--decode", "0"], "no worker decodes"),
        (["serve", "--kv-cache-memory-bytes", "lots"], "must be a number of bytes (such as 512M or 4GiB)"),
        (["serve", "--transport", "pigeon"], "must be one of auto, shared_memory, nixl, tcp"),
        (["serve", "--kv-cache-memory-bytes", "900GiB"], "2 KV caches of 1800.0 GiB together"),
        (["serve", "--device", "mps"], "device: 'mps' is not supported; it must be auto, cpu, cuda or cuda:N"),
        (["serve", "--device", "cuda"], "device: cuda needs a GPU, but "),
        (["worker", "--model", "m", "--device", "cuda:1"], "device: cuda:1 needs a GPU, but "),
        (["worker", "--model", "m", "--device", "mps"], "device: 'mps' is not supported"),
        (["worker", "--role", "idle"], "must be one of both, prefill, decode"),
        (["worker"], "missing: --model"),
        (["router"], "missing: --model"),
        (["chat", "--temperature", "-1"], "--temperature"),
    ],
)
def test_invalid_options_are_refused_by_name(arguments: list[str], message: str) -> None:
    if "cuda" in arguments and visible_gpus().count:
        pytest.skip("this machine has a GPU, on which the command would serve")
    port = ("--port", free_port()) if arguments[0] == "serve" else ()
    result = run(*arguments, *port)
    assert result.exit_code == 2, result.output
    assert message in result.output


def test_an_unknown_key_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text("engine:\n  max_num_seq: 3\n")
    for command in ("serve", "worker"):
        result = run(command, "--config", str(file))
        assert result.exit_code == 2
        assert "engine.max_num_seq: unknown option; did you mean max_num_seqs?" in result.output


def test_a_checkpoint_directory_is_found_and_named(checkpoint: Path) -> None:
    found = find_checkpoint(ClusterConfig(model=str(checkpoint)), {})
    assert (found.directory, found.name) == (checkpoint, "tiny")


def test_an_unsupported_model_is_refused_before_anything_starts(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps({**QWEN3, "architectures": ["GPT2LMHeadModel"]}))
    result = run("serve", str(checkpoint))
    assert result.exit_code == 1
    assert "cannot serve tiny" in result.output
    assert "GPT2LMHeadModel" in result.output


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json"])
def test_a_checkpoint_without_weights_or_tokenizer_is_refused(checkpoint: Path, file: str) -> None:
    (checkpoint / file).unlink()
    result = run("serve", str(checkpoint))
    assert result.exit_code == 1
    assert "cannot serve tiny: no " in result.output
    assert file.removeprefix("model") in result.output


def test_a_context_longer_than_the_checkpoints_is_refused_before_anything_starts(checkpoint: Path) -> None:
    result = run("serve", str(checkpoint), "--max-model-len", "65", "--port", free_port())
    assert result.exit_code == 2
    assert "max_model_len: 65 tokens exceed the checkpoint's context of 64" in result.output


def test_a_model_that_is_neither_directory_nor_hub_id_is_refused() -> None:
    for name in ("/nowhere/model", "./model", "a/b/c"):
        result = run("serve", name)
        assert result.exit_code == 1
        assert f"{name} is neither a directory, a GGUF file nor a hub id" in result.output


def test_a_hub_id_without_a_network_is_a_clear_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "baton", "serve", "nobody-here/no-such-model"],
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "could not be downloaded from the hub" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_named(checkpoint: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        result = run("serve", str(checkpoint), "--port", port)
    assert result.exit_code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port" in result.output
