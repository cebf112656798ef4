"""A model that counts: random weights of another checkpoint's shape, but after token n comes token n + 1.

Its steps take as long as those of a trained model, and its outputs repeat a prompt of consecutive tokens, as those of a
model that edits a text do. Random weights alone repeat nothing.
"""

import json
import random
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

LAYERS_SHARE = 0.02  # of what layers add to the hidden state, so that the token decides
SHARPNESS = 0.35  # at a temperature of 1 about two tokens in three count on
EDIT_EVERY = 12  # tokens


def write_counting_model(source: Path, directory: Path) -> Path:
    """Write a counting model with the shape of a dense random checkpoint to a new directory; returns that."""
    shutil.copytree(source, directory)
    tensors: dict[str, Tensor] = {}
    for file in directory.glob("*.safetensors"):
        tensors |= load_file(file)
        file.unlink()
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = tensors[name] * LAYERS_SHARE
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].roll(1, 0) * SHARPNESS
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "model.safetensors.index.json").unlink(missing_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": False}))
    return directory


def edited_passage(draw: random.Random, words: range, length: int) -> list[int]:
    """Return a prompt: consecutive tokens, every twelfth replaced, then the first one, from which the output counts."""
    start = draw.randrange(words.start, words.stop - length)
    passage = list(range(start, start + length))
    passage[EDIT_EVERY - 1 :: EDIT_EVERY] = draw.choices(words, k=length // EDIT_EVERY)
    return [*passage, start]
