"""Draft heads that do not fit the model for which they draft."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.cli.options.model_source import BUNDLED
from baton.engine.checkpoint.model_config import model_config_of
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError
from baton.engine.execution.load_plan import LoadPlan
from baton.engine.parallel.tensor_shard import TensorShard
from baton.engine.speculation.drafts import draft_of
from baton.engine.speculation.heads.head_checkpoint import HeadCheckpoint
from tests.checkpoints import make_checkpoint
from tests.draft_checkpoints import with_config
from tests.draft_heads import HEAD_DIM, KV_HEADS, WEIGHTS, random_head, with_mtp
from tests.unit.engine.speculation.heads.head_rig import option


def read(head: Path | None, method: str = "eagle3", model: Path = BUNDLED, **options: object) -> HeadCheckpoint:
    engine = EngineConfig(model=str(model), speculative_config=option(method, head), **options)  # type: ignore[arg-type]
    found = draft_of(engine, model_config_of(engine))
    assert isinstance(found, HeadCheckpoint)
    return found


def changed(head: Path, tensors: dict[str, torch.Tensor | None]) -> Path:
    """Replace or remove tensors of a head in place."""
    found = load_file(head / WEIGHTS) | tensors
    save_file({name: each for name, each in found.items() if each is not None}, head / WEIGHTS)
    return head


def test_a_head_that_fits(tmp_path: Path) -> None:
    directory = random_head(BUNDLED, tmp_path / "head", "eagle3", num_drafted=100)
    head = read(directory, max_model_len=300)
    assert (head.max_model_len, head.head_vocab_size, head.layers) == (300, 100, (0, 1, 2))
    kv_bytes, state_bytes = 2 * KV_HEADS * HEAD_DIM * 2, 256 * 2
    assert head.block_bytes == 16 * head.token_bytes == 16 * (kv_bytes + state_bytes)
    with_config(
        directory, eagle_aux_hidden_state_layer_ids=None, eagle_config={"eagle_aux_hidden_state_layer_ids": [3, 2, 1]}
    )
    assert read(directory).layers == (1, 2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Eagle3Speculator"]}, "its architecture is 'Eagle3Speculator', but eagle3 needs LlamaF"),
        ({"hidden_size": 128}, "its hidden size is 128, but the model's 256; name a head that was trained for this"),
        ({"target_hidden_size": 512}, "its hidden size is 512, but the model's 256; name a head that was trained"),
        ({"vocab_size": 4000}, "its vocabulary has 4000 tokens, but the model's 4096; name a head that was trained"),
        ({"num_hidden_layers": 0}, r"config\.json: num_hidden_layers must be from 1 to 4096, not 0"),
        ({"draft_vocab_size": 99}, "it drafts 99 of 4096 tokens, but has no d2t to tell which"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, r"must be 3 of the model's layers, 0 to 3.* not \[1, 2, 4\]"),
        ({"eagle_aux_hidden_state_layer_ids": None}, r"must be 3 of the model's layers, 0 to 3.* not \[1, 2, 2\]"),
    ],
)
def test_another_size_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    directory = with_config(random_head(BUNDLED, tmp_path / "head", "eagle3"), **changes)
    with pytest.raises(EngineError, match=f"speculative_config: the draft head {directory}: .*{message}"):
        read(directory)


def test_other_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the draft head /none is not a directory; name one with a head"):
        read(Path("/none"))
    head = changed(random_head(BUNDLED, tmp_path / "head", "eagle3"), {"fc.weight": None})
    with pytest.raises(EngineError, match=r"it has no fc\.weight in \*\.safetensors, so it is no head of eagle3"):
        read(head)
    with pytest.raises(EngineError, match="its architecture is 'Qwen3MoeForCausalLM', but eagle needs Eagle"):
        read(BUNDLED, "eagle")


def test_a_model_without_layers_for_it_has_no_mtp(tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match="mtp is not supported for Qwen3MoeForCausalLM, only for DeepseekV3ForCausalLM"
    ):
        read(None, "mtp")
    model = make_checkpoint("deepseek-v3", tmp_path / "model")
    with pytest.raises(EngineError, match=r"\S+ has no weights for multi-token prediction \(model\.layers\.3\.eh_proj"):
        read(None, "mtp", model)
    found = read(None, "mtp", with_mtp(model))
    assert found.mtp_layer == "model.layers.3"
    engine, config = found.engine, found.target
    with pytest.raises(EngineError, match="mtp cannot be used with expert_parallel, which would divide its experts"):
        LoadPlan.of(engine, config, TensorShard(), is_expert_parallel=True)


def test_blocks_that_are_given_back_do_not_combine(tmp_path: Path) -> None:
    head = random_head(BUNDLED, tmp_path / "head", "eagle")
    with pytest.raises(
        EngineError, match="eagle reads hidden states of the whole context, which hybrid_kv_cache gives"
    ):
        read(head, "eagle", hybrid_kv_cache=True)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"midlayer.hidden_norm.weight": None}, r"tensor model\.layers\.0\.hidden_norm\.weight is missing"),
        ({"more.weight": torch.zeros(3)}, r"unexpected tensors .*model\.more\.weight"),
        ({"d2t": torch.zeros(100, dtype=torch.int64) - 1}, "d2t must map each of 100 tokens to another one below 4096"),
        (
            {"lm_head.weight": None},
            r"tensor lm_head\.weight is missing: the model's own has 4096 tokens instead of 100",
        ),
    ],
)
def test_damaged_weights_are_errors_of_the_engine(
    tensors: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    head = changed(random_head(BUNDLED, tmp_path / "head", "eagle3", num_drafted=100), tensors)
    config = EngineConfig(
        model=str(BUNDLED), kv_cache_memory_bytes=1 << 20, num_threads=1, speculative_config=option("eagle3", head)
    )
    with pytest.raises(EngineError, match=f"speculative_config: the draft head {head}: {message}"):
        Engine(config)


def test_a_head_with_its_own_embedding_and_other_width(tmp_path: Path) -> None:
    head = random_head(BUNDLED, tmp_path / "head", "eagle3")
    config = json.loads((head / "config.json").read_text())
    assert config["hidden_size"] == 256
    changed(head, {"embed_tokens.weight": torch.randn(4096, 256), "t2d": torch.ones(4096, dtype=torch.bool)})
    engine = EngineConfig(
        model=str(BUNDLED), kv_cache_memory_bytes=1 << 20, num_threads=1, speculative_config=option("eagle3", head)
    )
    assert Engine(engine).speculator is not None
