"""The layer for multi-token prediction drafts what transformers' own layer does with the same weights."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints import make_checkpoint
from tests.draft_heads import WEIGHTS, with_mtp, with_qwens_mtp
from tests.marks import slow_case
from tests.unit.engine.speculation.draft_rig import run_and_free
from tests.unit.engine.speculation.heads.head_rig import advance, drafts_of, head_engine, quiet_engine
from tests.unit.engine.speculation.heads.test_head_model import request_of
from tests.unit.engine.speculation.speculation_rig import assert_equal, copies, engine_of, run
from tests.unit.engine.speculation.test_draft_models import requests_of


def reference_drafts(model: Path, token_ids: Sequence[int], count: int) -> list[int]:
    """Drafts after `token_ids`, with the layer for multi-token prediction as one more layer of transformers' model."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(model)
    num_layers, eps = config.num_hidden_layers, config.rms_norm_eps
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    target = transformers.AutoModelForCausalLM.from_pretrained(model, **options)
    deeper = transformers.AutoModelForCausalLM.from_pretrained(model, num_hidden_layers=num_layers + 1, **options)
    tensors = load_file(model / WEIGHTS)
    own = {name: tensors[f"model.layers.{num_layers}.{name}.weight"] for name in ("enorm", "hnorm", "shared_head.norm")}
    project = tensors[f"model.layers.{num_layers}.eh_proj.weight"]

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * own[name]

    rows, drafts = list(token_ids[1:]), []
    with torch.inference_mode():
        states = target.model(torch.tensor([token_ids])).last_hidden_state[0, :-1]
        for _ in range(count):
            embeddings = target.model.embed_tokens(torch.tensor(rows))
            x = (torch.cat([norm(embeddings, "enorm"), norm(states, "hnorm")], dim=1) @ project.T)[None]
            positions = torch.arange(len(rows))[None]
            mask = torch.full((len(rows), len(rows)), -torch.inf).triu(1)[None, None]
            rotation = deeper.model.rotary_emb(x, positions)
            output = deeper.model.layers[num_layers](
                x, attention_mask=mask, position_embeddings=rotation, position_ids=positions
            )
            state = (output[0] if isinstance(output, tuple) else output)[0, -1:]
            drafts.append(int(target.lm_head(norm(state, "shared_head.norm"))[0].argmax()))
            rows.append(drafts[-1])
            states = torch.cat([states, state])
    return drafts


def with_one_more_layer(model: Path, directory: Path) -> Path:
    """Copy a checkpoint of Qwen with the layer for multi-token prediction as the model's last layer."""
    config = json.loads((model / "config.json").read_text())
    count = config["num_hidden_layers"]
    config |= {"num_hidden_layers": count + 1, "layer_types": [*config["layer_types"], "full_attention"]}
    prefix, new = "mtp.layers.0.", f"model.layers.{count}."
    tensors = {name.replace(prefix, new): each for name, each in load_file(model / WEIGHTS).items()}
    directory.mkdir()
    save_file(
        {name: each for name, each in tensors.items() if not name.startswith("mtp.")},
        directory / WEIGHTS,
        {"format": "pt"},
    )
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def qwens_reference_drafts(model: Path, deeper: Path, token_ids: Sequence[int], count: int) -> list[int]:
    """Drafts of a model of Qwen; norms have weights around 0, and the last one's output is the next hidden state."""
    import transformers

    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    target, whole = (transformers.AutoModelForCausalLM.from_pretrained(each, **options) for each in (model, deeper))
    tensors, eps = load_file(model / WEIGHTS), target.config.rms_norm_eps

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 + tensors[f"mtp.{name}.weight"])

    rows, drafts = list(token_ids[1:]), []
    with torch.inference_mode():
        states = target.model(torch.tensor([token_ids])).last_hidden_state[0, :-1]
        for _ in range(count):
            embeddings = norm(target.model.embed_tokens(torch.tensor(rows)), "pre_fc_norm_embedding")
            joined = torch.cat([embeddings, norm(states, "pre_fc_norm_hidden")], dim=1)
            x = (joined @ tensors["mtp.fc.weight"].T)[None]
            positions = torch.arange(len(rows))[None]
            mask = torch.full((len(rows), len(rows)), -torch.inf).triu(1)[None, None]
            rotation = whole.model.rotary_emb(x, positions)
            output = whole.model.layers[-1](
                x, attention_mask=mask, position_embeddings=rotation, position_ids=positions
            )
            state = norm((output[0] if isinstance(output, tuple) else output)[0, -1:], "norm")
            drafts.append(int(target.lm_head(state)[0].argmax()))
            rows.append(drafts[-1])
            states = torch.cat([states, state])
    return drafts


@pytest.mark.parametrize("architecture", ["qwen3-next", slow_case("qwen3.5"), slow_case("qwen3.5-moe")])
def test_drafts_of_qwens_layer_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    model = with_qwens_mtp(make_checkpoint(architecture, tmp_path / "model"))
    deeper = with_one_more_layer(model, tmp_path / "deeper")
    engine = quiet_engine(model, "mtp")
    request = request_of("a", 20)
    engine.add(request)
    for length in (21, 30):
        advance(engine, request, length)
        expected = qwens_reference_drafts(model, deeper, request.token_ids, 3)
        assert drafts_of(engine, request, 3) == expected


@pytest.mark.parametrize("architecture", ["deepseek-v3", pytest.param("glm4-moe", marks=pytest.mark.slow)])
def test_drafts_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    model = with_mtp(make_checkpoint(architecture, tmp_path / "model"))
    engine = quiet_engine(model, "mtp")
    request = request_of("a", 20)
    engine.add(request)
    for length in (21, 30):
        advance(engine, request, length)
        assert drafts_of(engine, request, 3) == reference_drafts(model, request.token_ids, 3)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["deepseek-v3", "glm4-moe", "glm4-moe-lite", "qwen3-next", "qwen3.5"])
def test_outputs_equal_those_without_drafts(architecture: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    model = with_qwens_mtp(model) if architecture.startswith("qwen") else with_mtp(model)
    requests = requests_of(3, 12)
    expected = run(engine_of(model, False), copies(requests))
    engine = head_engine(model, "mtp")
    assert_equal(run_and_free(engine, requests), expected)
    assert engine.stats().speculation.num_draft_tokens > 50
