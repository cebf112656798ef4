"""Embedding models: checkpoints with sentence-transformers' files, and what transformers computes of them."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM

from tests.checkpoints import make_checkpoint

MODE_KEYS = {"last": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
Vector = NDArray[np.float32]


def add_pooling(directory: Path, kind: str, *, normalizes: bool = True, **config: object) -> Path:
    """Adds the files of sentence-transformers to a checkpoint, and `config` to its config.json; returns it."""
    package = "sentence_transformers.models"
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalizes else [])]
    entries = [
        {"idx": place, "name": str(place), "path": path, "type": f"{package}.{name}"}
        for place, (path, name) in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(entries))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": 64, "include_prompt": True, **dict.fromkeys(MODE_KEYS.values(), False)}
    pooling[MODE_KEYS[kind]] = True
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    change_config(directory, **config)
    return directory


def change_config(directory: Path, **changes: object) -> None:
    """Changes keys of a checkpoint's config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def make_embedding_model(architecture: str, directory: Path, kind: str, **options: Any) -> Path:
    """Saves a random embedding model, as `make_checkpoint` does."""
    normalizes = options.pop("normalizes", True)
    return add_pooling(make_checkpoint(architecture, directory, **options), kind, normalizes=normalizes)


def without_head(checkpoint: Path, directory: Path) -> Path:
    """Saves a copy of a model as AutoModel does: without lm_head, and without the prefix of its tensors."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model.model.save_pretrained(directory)
    for name in ("modules.json", "1_Pooling"):
        if (source := checkpoint / name).is_dir():
            shutil.copytree(source, directory / name)
        elif source.exists():
            shutil.copy(source, directory / name)
    return directory


class EmbeddingOracle:
    """An embedding model in transformers, in fp32."""

    def __init__(self, checkpoint: Path, kind: str) -> None:
        self._model = AutoModel.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
        self._kind = kind

    @torch.inference_mode()
    def pooled(self, token_ids: Sequence[int]) -> Tensor:
        """Return the pooled hidden states of an input, not normalised."""
        states = self._model(torch.tensor([list(token_ids)])).last_hidden_state[0].float()
        if self._kind == "mean":
            return states.mean(0)
        return states[-1] if self._kind == "last" else states[0]

    def embedding(self, token_ids: Sequence[int]) -> Vector:
        """Return an input's embedding of length 1."""
        vector: Vector = torch.nn.functional.normalize(self.pooled(token_ids), dim=0).numpy()
        return vector


def floats(embedding: bytes) -> Vector:
    """Return the numbers of an embedding as the engine and the workers report it."""
    return np.frombuffer(embedding, "<f4")
