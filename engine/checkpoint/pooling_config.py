"""Reader of a checkpoint's pooling: the files of sentence-transformers, or the `pooling` option.

`modules.json` lists the modules of an embedding model: the transformer, a pooling with its config, and perhaps
a normalization. Other modules are rejected by name.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.pooling.config import KINDS, PoolingConfig, PoolingKind

log = logging.getLogger(__name__)

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
MAX_MODULES = 64
AUTO, NONE = "auto", "none"
POOLING_OPTIONS = (AUTO, *KINDS, NONE)
INSTEAD = "set pooling to last, mean, cls or none to ignore it"
MODES: dict[str, PoolingKind] = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
FLAGS: dict[str, PoolingKind] = {  # keys of older poolings, of which one is true
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


@dataclass(frozen=True, slots=True)
class StoredPooling:
    """Pooling that a checkpoint names."""

    kind: PoolingKind
    normalizes: bool


def is_embedding_checkpoint(directory: Path) -> bool:
    """Return whether a checkpoint names the modules of an embedding model."""
    return (directory / MODULES).exists()


def read_pooling_config(directory: Path, hidden_size: int, pooling: str = AUTO) -> PoolingConfig | None:
    """Return how a model makes embeddings; None if it makes none.

    `pooling`: auto (the checkpoint's), none, or the kind to use instead of the checkpoint's; embeddings are then
    normalized, as in vLLM, unless the checkpoint's modules omit that. Raises UnsupportedModel for modules that are not
    implemented, InvalidCheckpoint for files that are missing or invalid.
    """
    if pooling == NONE:
        return None
    kind = next((each for each in KINDS if each == pooling), None)
    if kind is not None:
        normalizes = not is_embedding_checkpoint(directory) or "Normalize" in _module_kinds(directory)
    elif is_embedding_checkpoint(directory):
        stored = _read_modules(directory)
        kind, normalizes = stored.kind, stored.normalizes
    else:
        return None
    config = JsonObject.read(directory / "config.json")
    sizes = tuple(config.integers("matryoshka_dimensions"))
    if not all(1 <= size <= hidden_size for size in sizes):
        raise InvalidCheckpoint(
            f"{config.source}: matryoshka_dimensions {shown(list(sizes))} must be from 1 to {hidden_size}"
        )
    return PoolingConfig(
        kind=kind,
        normalizes=normalizes,
        size=hidden_size,
        is_matryoshka=bool(sizes) or config.boolean("is_matryoshka", False),
        matryoshka_sizes=sizes,
    )


def _module_kinds(directory: Path) -> list[str]:
    """Return the class names of the modules, without their packages, which differ between versions."""
    return [module.text("type").rpartition(".")[2] for module in _modules(directory)]


def _modules(directory: Path) -> list[JsonObject]:
    modules = JsonObject.read_list(directory / MODULES)
    if not 0 < len(modules) <= MAX_MODULES:
        raise InvalidCheckpoint(f"{directory / MODULES} must have from 1 to {MAX_MODULES} modules")
    return modules


def _read_modules(directory: Path) -> StoredPooling:
    """Return the checkpoint's pooling. Raises UnsupportedModel or InvalidCheckpoint."""
    modules, kinds = _modules(directory), _module_kinds(directory)
    source = directory / MODULES
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        raise UnsupportedModel(
            f"{source}: the modules {', '.join(map(shown, kinds[:8]))} are not supported, only Transformer, Pooling, "
            f"and Normalize, in this order; {INSTEAD}"
        )
    if modules[0].text("path", ""):
        raise UnsupportedModel(f"{source}: the transformer is not at the top of the directory, which is not supported")
    path = PurePosixPath(modules[1].text("path", ""))
    if path.is_absolute() or ".." in path.parts:
        raise InvalidCheckpoint(f"{source}: path {shown(str(path))} points outside of the checkpoint")
    _warn_of_prompt(directory)
    return StoredPooling(_read_kind(JsonObject.read(directory / path / "config.json")), len(kinds) > 2)


def _read_kind(config: JsonObject) -> PoolingKind:
    """Return the kind in a pooling's config. Its `include_prompt` has no effect: the server adds no prompt."""
    modes: Sequence[str] = [
        key for key in config.values if key.startswith("pooling_mode_") and config.boolean(key, False)
    ]
    if "pooling_mode" in config:
        modes = [config.text("pooling_mode")]
    known = MODES | FLAGS
    if len(modes) != 1 or modes[0] not in known:
        found = ", ".join(map(shown, modes[:8])) or "none"
        raise UnsupportedModel(
            f"{config.source}: pooling {found} is not supported, only the last token, the mean of all, or the first "
            f"(cls); {INSTEAD}"
        )
    return known[modes[0]]


def _warn_of_prompt(directory: Path) -> None:
    path = directory / PROMPTS
    if not path.is_file():
        return
    config = JsonObject.read(path)
    if "default_prompt_name" in config:
        name = shown(config.text("default_prompt_name"))
        log.warning("%s: the default prompt %s is not added to inputs; clients must send it with them", path, name)
