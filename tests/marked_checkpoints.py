"""Copies of the bundled model whose vocabulary has further special tokens, as models have for their markers."""

import json
import shutil
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import cat

BUNDLED = Path(str(files("baton"))) / "bundled_model"
EMBEDDING = "model.embed_tokens.weight"
GENERATION_PROMPT = "<|im_start|>assistant\\n"


def marked_checkpoint(
    directory: Path,
    marks: str,
    special: Sequence[str] = (),
    ends: Sequence[str] = (),
    generation_prompt: str = GENERATION_PROMPT,
) -> Path:
    """Copy the bundled model to `directory`, with special tokens, of which `ends` also end an output.

    marks: markers of a format that the chat template shows in a comment, by which a router finds the format.
    """
    shutil.copytree(BUNDLED, directory)
    template = (BUNDLED / "chat_template.jinja").read_text().replace(GENERATION_PROMPT, generation_prompt)
    (directory / "chat_template.jinja").write_text("{#- " + marks + " -#}" + template)
    if not special:
        return directory
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_text())
    like, first = tokenizer["added_tokens"][-1], len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] += [like | {"id": first + place, "content": text} for place, text in enumerate(special)]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    weights = load_file(BUNDLED / "model.safetensors")
    weights[EMBEDDING] = cat([weights[EMBEDDING], weights[EMBEDDING][300 : 300 + len(special)]])  # any text's rows
    save_file(weights, directory / "model.safetensors")
    for name in ("config.json", "generation_config.json"):
        config = json.loads((BUNDLED / name).read_text())
        if name == "config.json":
            config["vocab_size"] = len(weights[EMBEDDING])
        config["eos_token_id"] = [0, 2, *(first + special.index(text) for text in ends)]
        (directory / name).write_text(json.dumps(config))
    return directory
