"""Damaged GGUF files and packed checkpoints: each is served, or refused with an EngineError that names the problem."""

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from baton.engine.checkpoint.gguf.header import read_header
from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.checkpoint.stored_quantization import read_stored_quantization
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.errors import EngineError, InvalidCheckpoint, UnsupportedModel
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.mutations import damaged_bytes, damaged_json, odd_texts
from tests.fuzz.small_checkpoint import DENSE, make_small
from tests.fuzz.test_checkpoint import accepts, joined, serves, split
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.packed.packed_writer import FORMATS, PackedFormat, awq, gptq, gptq_config, write_packed

SIZES = DENSE | {"model_type": "qwen3", "hidden_size": 32, "intermediate_size": 32, "head_dim": 16, "vocab_size": 24}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*norm"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 8},
            "input_activations": None,
        }
    },
}
SMALL = {
    "gptq": PackedFormat(gptq_config(group=8, desc_act=True), gptq(1), group=8, act_order=True),
    "awq": PackedFormat(FORMATS["awq"].config | {"group_size": 8}, awq, group=8),
}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("gguf")
    source = make_small(directory / "source", DENSE)
    (source / "config.json").write_text(json.dumps(DENSE | {"model_type": "qwen3"}))
    return write_gguf(source, directory / "gguf", Type.F32, others={"attn_output": Type.BF16}).file.read_bytes()


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from tests.checkpoints import make_checkpoint

    directory = tmp_path_factory.mktemp("blocks")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 32, "num_hidden_layers": 1}
    source = make_checkpoint("qwen3", directory / "source", **sizes)
    return write_gguf(source, directory / "gguf", Type.Q8_0).file.read_bytes()


@pytest.fixture(scope="module", params=list(SMALL))
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    source = make_small(directory / "source", DENSE)
    return write_packed(source, directory, SMALL[request.param]).packed


def serves_file(file: Path, cache: Path) -> bool:
    """Serve a GGUF file; return False if it is refused. Fails for any other outcome."""
    shutil.rmtree(cache, ignore_errors=True)
    directories: list[Path] = []
    return accepts(lambda: directories.append(checkpoint_directory(file, cache))) and serves(directories[0])


def test_undamaged_checkpoints_serve(gguf: bytes, blocks: bytes, packed: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    for content in (gguf, blocks):
        file.write_bytes(content)
        assert serves_file(file, tmp_path / "cache")
    assert serves(packed)


def test_damaged_files_are_served_or_refused(fuzzing: Fuzzing, gguf: bytes, blocks: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"

    def check(damaged: bytes) -> None:
        file.write_bytes(damaged)
        serves_file(file, tmp_path / "cache")

    heads = [(content[:4000], content[4000:]) for content in (gguf, blocks)]
    checks: list[Any] = [(damaged_bytes(content), check) for content in (gguf, blocks)]
    checks += [(damaged_bytes(head).map(lambda each, rest=rest: each + rest), check) for head, rest in heads]
    fuzzing.run_all(checks, 12)


def test_damaged_quantization_configs_are_served_or_refused(fuzzing: Fuzzing, packed: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(packed, tmp_path / "damaged")
    config = json.loads((packed / "config.json").read_text())

    def check(damaged: Any) -> None:
        (directory / "config.json").write_text(json.dumps(config | {"quantization_config": damaged}))
        serves(directory)

    dynamic = st.dictionaries(odd_texts, st.sampled_from([{}, {"bits": 8}, {"bits": 3}, {"group_size": 16}, 1]))
    overrides = dynamic.map(lambda each: config["quantization_config"] | {"dynamic": each})
    fuzzing.run_all([(damaged_json(config["quantization_config"]), check), (overrides, check)], 15)


def test_damaged_compressed_tensors_configs_are_read_or_refused(fuzzing: Fuzzing) -> None:
    def check(damaged: Any) -> None:
        if isinstance(damaged, dict):
            source = JsonObject({"quantization_config": damaged}, "config.json")
            accepts(lambda: read_stored_quantization(source))

    fuzzing.run(damaged_json(COMPRESSED), check, 100)


def test_damaged_headers_of_packed_weights_are_served_or_refused(
    fuzzing: Fuzzing, packed: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(packed, tmp_path / "damaged")
    file = directory / "model.safetensors"
    header, data = split(file.read_bytes())

    def check(damaged: Any) -> None:
        file.write_bytes(joined(json.dumps(damaged).encode(), data))
        serves(directory)

    fuzzing.run(damaged_json(header), check, 15)


def test_a_truncated_file_is_refused_by_name(blocks: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(blocks[:-40])
    with pytest.raises(InvalidCheckpoint, match=r"a\.gguf has \d+ bytes, but tensor \S+ ends at byte \d+: it is trunc"):
        checkpoint_directory(file, tmp_path / "cache")
    for count in (0, 3, 23, 100, 500):
        file.write_bytes(blocks[:count])
        with pytest.raises(InvalidCheckpoint, match=r"a\.gguf (is truncated or not a GGUF file|has a damaged header)"):
            checkpoint_directory(file, tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("blk.0.ffn_up.weight", {"kind": 16}, UnsupportedModel, "tensor blk.0.ffn_up.weight has type IQ2_XXS"),
        ("blk.0.ffn_up.weight", {"kind": 99}, UnsupportedModel, "tensor blk.0.ffn_up.weight has type 99"),
        ("blk.0.ffn_up.weight", {"columns": 40}, InvalidCheckpoint, "40 columns, which blocks of 32 do not divide"),
        ("blk.0.ffn_up.weight", {"columns": 1 << 60}, InvalidCheckpoint, "it is truncated or damaged"),
        ("blk.0.ffn_up.weight", {"columns": 64}, InvalidCheckpoint, "overlaps the one in front of it"),
        ("blk.0.ffn_up.weight", {"offset": 1}, InvalidCheckpoint, "begins at byte 1, not at a multiple of 32"),
    ],
)
def test_headers_that_lie_are_refused_by_name(
    blocks: bytes, tmp_path: Path, name: str, change: dict[str, int], error: type[EngineError], message: str
) -> None:
    at = blocks.index(name.encode()) + len(name)
    dimensions = struct.unpack_from("<I", blocks, at)[0]
    places = {"columns": at + 4, "kind": at + 4 + 8 * dimensions, "offset": at + 8 + 8 * dimensions}
    content = bytearray(blocks)
    for key, value in change.items():
        struct.pack_into("<I" if key == "kind" else "<Q", content, places[key], value)
    file = tmp_path / "a.gguf"
    file.write_bytes(content)
    with pytest.raises(error, match=message):
        read_header(file)


def test_tensors_of_a_gguf_file_have_transformers_names(blocks: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(blocks)
    names = read_tensors(tmp_path)
    assert "model.layers.0.mlp.up_proj.weight" in names
    assert names["model.layers.0.mlp.up_proj.weight"].shape == (32, 32)
