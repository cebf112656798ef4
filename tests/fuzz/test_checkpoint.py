"""Damaged checkpoints: each is served, or refused with an EngineError that names the problem."""

import json
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from baton.engine.checkpoint.model_config import read_generation_defaults, read_model_config
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError, InvalidCheckpoint
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.router.model_info import read_model_info
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.mutations import damaged_bytes, damaged_json, json_values
from tests.fuzz.small_checkpoint import DENSE, GENERATION, SPARSE, make_sharded, make_small
from tests.marks import slow_case
from tests.unit.engine.checkpoint.small_configs import DEEPSEEK_V2, LLAMA, QWEN3_MOE

NO_FILES = ["../model-1-of-2.safetensors", "/etc/passwd", "..", ".", "", "a\0b", "x" * 600, "\udc80", 5]
PATIENCE_S = 20.0
MAX_GROWTH_KIB = 400 << 10
MAX_TEXT = 3000
DEEPSEEK_V3 = DEEPSEEK_V2 | {
    "architectures": ["DeepseekV3ForCausalLM"], "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
YARN = {
    "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1,
    "mscale": 0.7, "mscale_all_dim": 0.9, "attention_factor": 1.2,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e5}
CONFIGS = [
    LLAMA | {"rope_scaling": LLAMA3, "head_dim": 16, "attention_bias": True},
    LLAMA | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2},
    QWEN3_MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [1], "layer_types": ["full_attention"] * 3},
    DEEPSEEK_V2 | {"rope_scaling": YARN},
    DEEPSEEK_V3,
]


def serves(directory: Path) -> bool:
    """Load a checkpoint and run a prompt; return False if it is refused. Fails for any other outcome."""
    began_s = time.monotonic()
    try:
        engine = Engine(EngineConfig(model=str(directory), kv_cache_memory_bytes=1 << 18, num_threads=1, block_size=4))
        read_model_info(str(directory), "model")
        for number, temperature in enumerate((0.0, 1.0)):
            sampling = SamplingParams(temperature=temperature, max_tokens=3, top_k=5 * number, logprobs=2)
            engine.add(Request(RequestId(f"{number}"), [0] * 5, 5, sampling))
        while engine.has_work:
            for output in engine.run(engine.schedule()).outputs:
                assert output.sampled is None or 0 <= output.sampled.token_id < engine.model_config.vocab_size
        engine.check_integrity()
    except EngineError as error:
        check_message(error)
        return False
    finally:
        assert time.monotonic() - began_s < PATIENCE_S
    return True


def accepts(read: Callable[[], object]) -> bool:
    """Call `read`; return False if it refuses."""
    try:
        read()
    except EngineError as error:
        check_message(error)
        return False
    return True


def check_message(error: EngineError) -> None:
    """Check that an error's text is not empty, short and printable."""
    text = str(error)
    assert 0 < len(text) < MAX_TEXT, text
    text.encode()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("whole")
    return {
        "dense": make_small(directory / "dense", DENSE),
        "sparse": make_small(directory / "sparse", SPARSE),
        "sharded": make_sharded(directory / "sharded"),
    }


@pytest.fixture(autouse=True)
def _bounded_memory() -> Any:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KIB


def test_undamaged_checkpoints_serve(whole: dict[str, Path]) -> None:
    assert all(serves(directory) for directory in whole.values())


@pytest.mark.parametrize("kind", ["dense", slow_case("sharded")])
def test_damaged_weights_are_served_or_refused(
    fuzzing: Fuzzing, whole: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    directory = tmp_path / "damaged"
    shutil.copytree(whole[kind], directory)
    file = next(directory.glob("*.safetensors"))
    content = file.read_bytes()
    header, data = split(content)

    def check_bytes(damaged: bytes) -> None:
        file.write_bytes(damaged)
        serves(directory)

    def check_header(damaged: Any) -> None:
        check_bytes(joined(json.dumps(damaged).encode(), data))

    near_header = damaged_bytes(content[: len(content) - len(data)]).map(lambda head: head + data)
    fuzzing.run_all(
        [(near_header, check_bytes), (damaged_bytes(content), check_bytes), (damaged_json(header), check_header)], 20
    )


def test_damaged_configs_are_served_or_refused(fuzzing: Fuzzing, whole: dict[str, Path], tmp_path: Path) -> None:
    directories = {}
    for kind in ("dense", "sparse"):
        directories[kind] = shutil.copytree(whole[kind], tmp_path / kind)

    def check_served(damaged: tuple[str, Any]) -> None:
        directory = directories[damaged[0]]
        (directory / "config.json").write_text(json.dumps(damaged[1]))
        serves(directory)

    def check_read(damaged: Any) -> None:
        (directories["dense"] / "config.json").write_text(json.dumps(damaged))
        accepts(lambda: read_model_config(directories["dense"], "float32"))

    def check_bytes(damaged: bytes) -> None:
        (directories["dense"] / "config.json").write_bytes(damaged)
        serves(directories["dense"])

    served = st.one_of(
        damaged_json(DENSE).map(lambda config: ("dense", config)),
        damaged_json(SPARSE).map(lambda config: ("sparse", config)),
    )
    read = st.sampled_from(CONFIGS).flatmap(damaged_json)
    kinds = [(served, check_served), (read, check_read), (damaged_bytes(json.dumps(DENSE).encode()), check_bytes)]
    fuzzing.run_all(kinds, 25)


def test_damaged_generation_configs_are_served_or_refused(
    fuzzing: Fuzzing, whole: dict[str, Path], tmp_path: Path
) -> None:
    directory = shutil.copytree(whole["dense"], tmp_path / "damaged")

    def check(damaged: Any) -> None:
        (directory / "generation_config.json").write_text(json.dumps(damaged))
        if accepts(lambda: read_generation_defaults(directory)) and accepts(lambda: read_model_config(directory)):
            read_model_info(str(directory), "model").sampling_defaults.validate(DENSE["vocab_size"])

    fuzzing.run(st.one_of(damaged_json(GENERATION), json_values), check, 50)


def test_damaged_indices_are_served_or_refused(fuzzing: Fuzzing, whole: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(whole["sharded"], tmp_path / "damaged")
    index = directory / "model.safetensors.index.json"
    content = index.read_bytes()

    def check_bytes(damaged: bytes) -> None:
        index.write_bytes(damaged)
        serves(directory)

    def check_values(damaged: Any) -> None:
        check_bytes(json.dumps(damaged).encode())

    weight_map = json.loads(content)["weight_map"]
    files = damaged_json(weight_map).map(lambda damaged: {"weight_map": damaged})
    empty = damaged_json({"weight_map": {}})
    fuzzing.run_all(
        [(damaged_bytes(content), check_bytes), (files, check_values), (empty, check_values)],
        40,
    )


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors"])
@pytest.mark.parametrize("what", ["directory", "pipe", "loop", "empty", "deep", "digits", "latin"])
def test_a_path_that_is_not_a_regular_file_is_refused(
    whole: dict[str, Path], tmp_path: Path, name: str, what: str
) -> None:
    directory = shutil.copytree(whole["dense"], tmp_path / "damaged")
    file = directory / name
    file.unlink()
    match what:
        case "directory":
            file.mkdir()
        case "pipe":  # opening it for reading would wait for a writer forever
            os.mkfifo(file)
        case "loop":
            file.symlink_to(file.name)
        case _:
            text = {"empty": "", "deep": "[" * 100_000, "digits": '{"a": ' + "1" * 5000 + "}", "latin": "\xff{}"}[what]
            file.write_bytes(text.encode("latin-1"))
    if (name, what) == ("generation_config.json", "loop"):
        return  # equivalent to a missing file
    with pytest.raises(InvalidCheckpoint, match=name if what != "loop" or name != "model.safetensors" else "neither"):
        Engine(EngineConfig(model=str(directory), kv_cache_memory_bytes=1 << 18, num_threads=1))


@pytest.mark.parametrize(
    "file", ["../model-1-of-2.safetensors", "/etc/passwd", "..", ".", "", "a\0b", "x" * 600, "\udc80", 5]
)
def test_an_index_may_name_only_files_of_its_own_directory(
    whole: dict[str, Path], tmp_path: Path, file: object
) -> None:
    directory = shutil.copytree(whole["sharded"], tmp_path / "inner" / "damaged")
    for shard in directory.glob("*.safetensors"):
        shutil.copy(shard, directory.parent)
    index = directory / "model.safetensors.index.json"
    entries = json.loads(index.read_text())
    first = next(iter(entries["weight_map"]))
    entries["weight_map"][first] = file
    index.write_text(json.dumps(entries))
    with pytest.raises(InvalidCheckpoint, match="no valid weight_map"):
        read_tensors(directory)


def test_overlapping_tensors_are_refused(whole: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(whole["dense"], tmp_path / "damaged")
    file = directory / "model.safetensors"
    header, data = split(file.read_bytes())
    header["model.norm.weight"]["data_offsets"] = header["model.layers.0.input_layernorm.weight"]["data_offsets"]
    file.write_bytes(joined(json.dumps(header).encode(), data))
    with pytest.raises(InvalidCheckpoint, match="instead of"):
        read_tensors(directory)


def test_missing_experts_take_no_memory(whole: dict[str, Path], tmp_path: Path) -> None:
    directory = shutil.copytree(whole["sparse"], tmp_path / "damaged")
    (directory / "config.json").write_text(json.dumps(SPARSE | {"moe_intermediate_size": 1 << 30}))
    with pytest.raises(InvalidCheckpoint, match="but the config needs"):
        Engine(EngineConfig(model=str(directory), kv_cache_memory_bytes=1 << 18, num_threads=1))


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a safetensors file into header and data."""
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    return header, content[8 + length :]


def joined(header: bytes, data: bytes) -> bytes:
    """Build a safetensors file."""
    return len(header).to_bytes(8, "little") + header + data
