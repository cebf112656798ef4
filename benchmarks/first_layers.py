"""Copy of the first layers of a checkpoint, which drafts for it."""

import json
import re
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

LAYER = re.compile(r"model\.layers\.(\d+)\.")


def with_first_layers(model: Path, directory: Path, num_layers: int) -> Path:
    """Copy a checkpoint without its layers after the first ones into a new directory; returns that."""
    shutil.copytree(model, directory)
    for file in directory.glob("*.safetensors"):
        kept = {name: tensor for name, tensor in load_file(file).items() if _layer_of(name) < num_layers}
        save_file(kept, file, {"format": "pt"})
    (directory / "model.safetensors.index.json").unlink(missing_ok=True)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.pop("layer_types", None)
    path.write_text(json.dumps({**config, "num_hidden_layers": num_layers}))
    return directory


def _layer_of(name: str) -> int:
    found = LAYER.match(name)
    return int(found[1]) if found else -1
