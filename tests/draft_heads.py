"""Draft heads with random weights, in the formats in which such heads are published."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HEADS, KV_HEADS, HEAD_DIM, INNER = 4, 2, 16, 48
WEIGHTS = "model.safetensors"
ARCHITECTURES = {"eagle": "LlamaForCausalLM", "eagle3": "LlamaForCausalLMEagle3"}


def random_head(
    model: Path,
    directory: Path,
    method: str,
    seed: int = 0,
    num_drafted: int | None = None,
    head_dim: int = HEAD_DIM,
) -> Path:
    """Save a head for a model, of EAGLE or EAGLE-3; returns its directory.

    num_drafted: how many tokens a head of EAGLE-3 drafts, every other one at first; None: all.
    """
    generator = torch.Generator().manual_seed(seed)
    target = json.loads((model / "config.json").read_text())
    hidden, vocab = target["hidden_size"], target["vocab_size"]
    shapes = _shapes(method, hidden, head_dim)
    if method == "eagle3":
        shapes["lm_head.weight"] = (num_drafted or vocab, hidden)
    tensors = {
        name: torch.rand(shape, generator=generator) + 0.5
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * shape[1] ** -0.5
        for name, shape in shapes.items()
    }
    if method == "eagle3" and num_drafted is not None:
        tensors |= vocabulary_maps(torch.randperm(vocab, generator=generator)[:num_drafted].sort().values, vocab)
    config = {
        "architectures": [ARCHITECTURES[method]],
        "hidden_size": hidden,
        "vocab_size": vocab,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "intermediate_size": INNER,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
    }
    if method == "eagle3":
        config |= {"draft_vocab_size": num_drafted or vocab, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return save_head(directory, tensors, config)


def save_head(directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, object]) -> Path:
    """Save a head's files; returns the directory."""
    directory.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / WEIGHTS)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def vocabulary_maps(token_ids: torch.Tensor, vocab_size: int) -> dict[str, torch.Tensor]:
    """The tensors with the tokens, ascending, that a head of EAGLE-3 drafts."""
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[token_ids] = True
    return {"d2t": token_ids - torch.arange(len(token_ids)), "t2d": t2d}


def repeating_head(model: Path, directory: Path) -> Path:
    """Save a head of EAGLE that hands the hidden state through: it drafts the token that the state led to."""
    random_head(model, directory, "eagle")
    tensors = load_file(directory / WEIGHTS)
    hidden = len(tensors["fc.weight"])
    tensors["fc.weight"] = torch.cat([torch.zeros(hidden, hidden), torch.eye(hidden)], dim=1)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"layers.0.{name}.weight"].zero_()
    save_file(tensors, directory / WEIGHTS)
    return directory


def with_mtp(model: Path, seed: int = 0) -> Path:
    """Add a random layer for multi-token prediction to a checkpoint in place: its last layer with other numbers."""
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(model / WEIGHTS)
    config = json.loads((model / "config.json").read_text())
    num_layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    last, new = f"model.layers.{num_layers - 1}.", f"model.layers.{num_layers}."
    for name in [each for each in tensors if each.startswith(last)]:
        places = torch.randperm(tensors[name].numel(), generator=generator)
        tensors[new + name.removeprefix(last)] = tensors[name].flatten()[places].view_as(tensors[name])
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{new}{name}.weight"] = torch.rand(hidden, generator=generator) + 0.5
    tensors[f"{new}eh_proj.weight"] = torch.randn(hidden, 2 * hidden, generator=generator) * hidden**-0.5
    for name, own in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        tensors[f"{new}{name}.weight"] = tensors[f"{own}.weight"].clone()
    save_file(tensors, model / WEIGHTS, {"format": "pt"})
    (model / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    return model


def with_qwens_mtp(model: Path, seed: int = 0) -> Path:
    """Add a random layer for multi-token prediction to a checkpoint of Qwen3-Next or Qwen3.5 in place.

    Its attention is that of the model's last layer with other numbers, and so are the MLP or the experts.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(model / WEIGHTS)
    config = json.loads((model / "config.json").read_text())
    last, hidden = f"model.layers.{config['num_hidden_layers'] - 1}.", config["hidden_size"]
    for name in [each for each in tensors if each.startswith(last)]:
        places = torch.randperm(tensors[name].numel(), generator=generator)
        tensors["mtp.layers.0." + name.removeprefix(last)] = tensors[name].flatten()[places].view_as(tensors[name])
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        tensors[f"mtp.{name}.weight"] = torch.rand(hidden, generator=generator) - 0.5
    tensors["mtp.fc.weight"] = torch.randn(hidden, 2 * hidden, generator=generator) * hidden**-0.5
    save_file(tensors, model / WEIGHTS, {"format": "pt"})
    return model


def _shapes(method: str, hidden: int, head_dim: int) -> dict[str, tuple[int, ...]]:
    is_third = method == "eagle3"
    prefix, width = ("midlayer", 2 * hidden) if is_third else ("layers.0", hidden)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, (3 if is_third else 2) * hidden),
        f"{prefix}.self_attn.q_proj.weight": (HEADS * head_dim, width),
        f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * head_dim, width),
        f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * head_dim, width),
        f"{prefix}.self_attn.o_proj.weight": (hidden, HEADS * head_dim),
        f"{prefix}.mlp.gate_proj.weight": (INNER, hidden),
        f"{prefix}.mlp.up_proj.weight": (INNER, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, INNER),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
    }
    if is_third:
        norms = (f"{prefix}.hidden_norm", f"{prefix}.input_layernorm", "norm")
        shapes |= {f"{name}.weight": (hidden,) for name in norms}
    return shapes
