"""Every architecture against transformers on tiny random checkpoints."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.weight_memory import num_parameters, weights_bytes
from baton.engine.config import EngineConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.execution.loaded_model import load, zeros
from baton.engine.kv.dtype import kv_bytes_per_token
from baton.engine.kv.layout import KVCacheLayout
from tests.architectures import ARCHITECTURES, VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_except
from tests.oracle import greedy, load_oracle
from tests.paged_model import PagedModel

THOROUGH = (  # with parts that no other has
    *("llama3", "qwen2-yarn", "qwen3", "mixtral", "qwen3-moe-mixed", "deepseek-v2", "deepseek-v3", "deepseek-v32"),
    *(
        "phi4-mini",
        "granite",
        "olmo2",
        "olmo3",
        "gemma2",
        "gemma3",
        "gemma4",
        "gemma4-large",
        "gemma4-moe",
        "llama4",
        "gpt-oss",
        "minimax-m2",
        "qwen3-next",
        "nemotron-h",
    ),
)
ROUNDED = (  # with dtypes that no other has
    *("llama3", "mixtral", "deepseek-v3", "deepseek-v32", "gemma3", "gemma4"),
    *("llama4", "gpt-oss", "qwen3-next", "nemotron-h"),
)
thoroughly = pytest.mark.parametrize("checkpoint", slow_except(ARCHITECTURES, THOROUGH), indirect=True)
in_bfloat16 = pytest.mark.parametrize("checkpoint", slow_except(ARCHITECTURES, ROUNDED), indirect=True)
ATOL = 1e-4  # logits have a standard deviation of about 1.2


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of each architecture in turn."""
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Any:
    """transformers' model of the checkpoint."""
    return load_oracle(checkpoint)


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


def oracle_logits(oracle: Any, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        logits: Tensor = oracle(torch.tensor([tokens])).logits[0].float()
    return logits


def test_prefill_gives_the_oracles_logits(checkpoint: Path, oracle: Any) -> None:
    prompts = {"long": random_tokens(150, 1), "short": random_tokens(37, 2), "one": random_tokens(1, 3)}
    logits = PagedModel(checkpoint).step(prompts)
    for name, tokens in prompts.items():
        expected = oracle_logits(oracle, tokens)
        assert expected.std() > 0.5
        torch.testing.assert_close(logits[name], expected, atol=ATOL, rtol=0)


@thoroughly
def test_chunks_and_decodes_in_any_mixture_give_the_oracles_logits(checkpoint: Path, oracle: Any) -> None:
    draw = random.Random(4)
    sequences = {f"s{index}": random_tokens(length, index) for index, length in enumerate((131, 64, 17, 90))}
    done = dict.fromkeys(sequences, 0)
    logits: dict[str, list[Tensor]] = {name: [] for name in sequences}
    paged = PagedModel(checkpoint)
    while waiting := [name for name in sequences if done[name] < len(sequences[name])]:
        counts = {name: draw.choice((1, 1, 2, 5, 23)) for name in draw.sample(waiting, draw.randint(1, len(waiting)))}
        step = {name: sequences[name][done[name] : done[name] + count] for name, count in counts.items()}
        for name, part in paged.step(step).items():
            logits[name].append(part)
            done[name] += len(step[name])
    for name, tokens in sequences.items():
        torch.testing.assert_close(torch.cat(logits[name]), oracle_logits(oracle, tokens), atol=ATOL, rtol=0)


@thoroughly
def test_greedy_tokens_equal_the_oracles(checkpoint: Path, oracle: Any) -> None:
    prompts = {"long": random_tokens(70, 11), "short": random_tokens(9, 12), "exact": random_tokens(32, 13)}
    outputs = PagedModel(checkpoint).greedy(prompts, 32)
    for name, tokens in prompts.items():
        assert outputs[name] == greedy(oracle, tokens, 32, outputs[name])
    # Models stuck on a few tokens would prove little.
    assert len(set().union(*outputs.values())) > 16


@in_bfloat16
def test_bfloat16_is_as_close_to_float32_as_the_oracles(checkpoint: Path, oracle: Any) -> None:
    prompts = {f"s{seed}": random_tokens(30, seed) for seed in range(8)}
    rounded = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.bfloat16)
    logits = PagedModel(checkpoint, dtype="bfloat16").step(prompts)
    exact = {name: oracle_logits(oracle, tokens) for name, tokens in prompts.items()}
    error = torch.cat([logits[name] - exact[name] for name in prompts]).abs()
    oracle_error = torch.cat([oracle_logits(rounded, tokens) - exact[name] for name, tokens in prompts.items()]).abs()
    # Medians, since a rounded router now and then chooses another expert, in either implementation.
    assert error.median() < 1.1 * oracle_error.median()
    assert error.median() < 0.05


@thoroughly
def test_repeated_steps_give_the_same_bits(checkpoint: Path) -> None:
    prompts = {"long": random_tokens(90, 31), "short": random_tokens(8, 32)}
    first, second = PagedModel(checkpoint, seed=1).step(prompts), PagedModel(checkpoint, seed=2).step(prompts)
    assert all(torch.equal(first[name], second[name]) for name in prompts)


@thoroughly
def test_only_requested_tokens_get_logits(checkpoint: Path) -> None:
    tokens = random_tokens(20, 41)
    everything = PagedModel(checkpoint).step({"s": tokens})["s"]
    paged = PagedModel(checkpoint)
    batch = paged.batch(["s"], [tokens])
    wanted = torch.tensor([19, 3])
    some = paged.model.forward(dataclasses.replace(batch, logits_indices=wanted), paged.pool)
    none = paged.model.forward(dataclasses.replace(batch, logits_indices=wanted[:0]), paged.pool)
    torch.testing.assert_close(some, everything[wanted], atol=1e-5, rtol=0)
    assert some.dtype == torch.float32
    assert none.shape == (0, VOCAB_SIZE)


def test_gemma4_without_the_compiled_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = make_checkpoint("gemma4", tmp_path), random_tokens(90, 5)
    expected = PagedModel(model).step({"s": tokens})["s"]
    monkeypatch.setattr("baton.engine.attention.factory.NativeAttention", None)
    torch.testing.assert_close(PagedModel(model).step({"s": tokens})["s"], expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize(
    ("architecture", "layers"),
    [("gemma4", "layers with KV heads of two sizes"), ("deepseek-v32", "sparse attention")],
)
def test_torchs_attention_serves_what_flashinfer_does_not_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, architecture: str, layers: str
) -> None:
    model, tokens = make_checkpoint(architecture, tmp_path), random_tokens(90, 5)
    paged = PagedModel(model)
    expected = paged.step({"s": tokens})["s"]
    on_gpu = attention_for(read_model_config(model), 16, torch.device("cuda"))
    assert f"FlashInfer's kernels are not used for {layers}" in caplog.text
    monkeypatch.setattr("tests.paged_model.attention_for", lambda *_, **__: on_gpu)
    torch.testing.assert_close(PagedModel(model).step({"s": tokens})["s"], expected, atol=ATOL, rtol=0)


def test_gemma4_is_refused_with_quantized_kv(tmp_path: Path) -> None:
    config = read_model_config(make_checkpoint("gemma4", tmp_path))
    with pytest.raises(UnsupportedModel, match="kv_cache_dtype 'int4' is not supported for Gemma4ForCausalLM"):
        attention_for(config, 16, torch.device("cuda"), "int4")
    with pytest.raises(UnsupportedModel, match="kv_cache_dtype 'int8' is not supported for Gemma4ForCausalLM"):
        KVCacheLayout.of(config, 16, kv_dtype="int8")


def test_layers_that_share_kv_take_no_memory_for_it(tmp_path: Path) -> None:
    config = read_model_config(make_checkpoint("gemma4", tmp_path))
    layout = KVCacheLayout.of(config, 16)
    assert layout.block_shape == (1, 3, 2, 1, 16, 32)  # three of six layers have KV of their own
    assert layout.block_bytes == 16 * kv_bytes_per_token(config)


def test_longrope_of_long_contexts_gives_the_oracles_logits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = make_checkpoint("phi4-mini", tmp_path / "model", original_max_position_embeddings=64)
    oracle = load_oracle(model)
    config = EngineConfig(model=str(model), max_model_len=1024, kv_cache_memory_bytes=1 << 22)
    loaded = load(config, zeros)
    paged, tokens = PagedModel(model), random_tokens(150, 1)
    paged.model = loaded.model
    torch.testing.assert_close(paged.step({"s": tokens})["s"], oracle_logits(oracle, tokens), atol=ATOL, rtol=0)
    assert "LongRoPE" not in caplog.text
    short = load(dataclasses.replace(config, max_model_len=None), zeros)
    assert (loaded.max_model_len, short.max_model_len) == (1024, 64)
    assert "max_model_len is 64, the original context of LongRoPE; it may be up to 2048" in caplog.text
    assert loaded.fingerprint != short.fingerprint  # they rotate keys differently


def test_deepseek_v32_is_refused_with_quantized_kv(tmp_path: Path) -> None:
    config = read_model_config(make_checkpoint("deepseek-v32", tmp_path))
    with pytest.raises(UnsupportedModel, match=r"'int8' is not supported for DeepseekV32.* indexer's keys"):
        KVCacheLayout.of(config, 16, kv_dtype="int8")


@pytest.mark.parametrize(
    ("text_model", "architecture", "vision"),
    [
        ("ministral3", "Mistral3ForConditionalGeneration", "vision_tower"),
        ("gemma3", "Gemma3ForConditionalGeneration", "vision_tower"),
        ("gemma4", "Gemma4ForConditionalGeneration", "audio_tower"),
        ("llama4", "Llama4ForConditionalGeneration", "vision_model"),
    ],
)
def test_the_text_part_of_a_model_for_images_is_read(
    text_model: str, architecture: str, vision: str, tmp_path: Path
) -> None:
    text = make_checkpoint(text_model, tmp_path / "text")
    tensors = load_file(text / "model.safetensors")
    config = json.loads((text / "config.json").read_text())
    image = {
        f"{vision}.patch_conv.weight": torch.zeros(2, 2),
        "multi_modal_projector.linear_1.weight": torch.zeros(2),
    }
    whole = {
        "architectures": [architecture],
        "model_type": "any",
        "dtype": "float32",
        "text_config": {key: value for key, value in config.items() if key not in ("architectures", "dtype")},
        "vision_config": {"hidden_size": 2, "model_type": "any"},
    }
    tokens = random_tokens(40, 1)
    expected = PagedModel(text).step({"s": tokens})["s"]
    for place, prefixes in enumerate((("language_model.model.", "language_model."), ("model.language_model.", ""))):
        directory = tmp_path / f"image-{place}"
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(whole))
        named = {
            prefixes[0] + name.removeprefix("model.") if name.startswith("model.") else prefixes[1] + name: tensor
            for name, tensor in tensors.items()
        }
        save_file(named | image, directory / "model.safetensors")
        paged = PagedModel(directory)
        assert torch.equal(paged.step({"s": tokens})["s"], expected)
        assert num_parameters(directory, paged.config) == sum(tensor.numel() for tensor in tensors.values())
        count = num_parameters(directory, paged.config)
        has_head = "lm_head.weight" in tensors  # otherwise it is a copy of the embedding, in its own layout
        copied = 0 if has_head else tensors["model.embed_tokens.weight"].numel()
        assert weights_bytes(directory, paged.config, None) == 4 * (count + copied)
