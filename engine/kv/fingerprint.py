"""Fingerprint of everything that two engines must have in common to exchange KV."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout

PROTOCOL_VERSION = 3  # increment when the meaning of a block's bytes, or what a fingerprint covers, changes
TOKENIZER_CONFIG = "tokenizer_config.json"
VOCABULARY_FILES = ("tokenizer.json", "special_tokens_map.json", "added_tokens.json")


def compatibility_fingerprint(
    directory: Path,
    config: ModelConfig,
    block_size: int,
    weights_revision: str,
    num_parts: int = 1,
    kv_dtype: str = "auto",
    quantization: str | None = None,
    groups: KVGroups | None = None,
) -> str:
    """Return a fingerprint that is equal for two engines if and only if each can use the other's blocks.

    It covers model, weights, dtype, layout, KV groups and protocol, and also the vocabulary, so that a request's tokens
    mean the same to both. `config` is that of the whole model: all ranks that hold some of a block's `num_parts` shards
    have the same fingerprint. It starts with the protocol version, so releases that compute it differently never match
    by accident. Raises InvalidCheckpoint if a file cannot be read.
    """
    layout = KVCacheLayout.of(config, block_size, num_parts, kv_dtype=kv_dtype, groups=groups)
    parts: list[object] = [asdict(config), repr(layout), _small_files(directory), weights_revision, quantization]
    if groups is not None and groups.has_windows:
        parts.append(asdict(groups))
    described = json.dumps(parts, sort_keys=True, default=sorted)  # sets are unordered
    return f"{PROTOCOL_VERSION}-{hashlib.blake2b(described.encode(), digest_size=16).hexdigest()}"


def _small_files(directory: Path) -> list[object]:
    """Return digests of the model's config and vocabulary files. Raises InvalidCheckpoint.

    The chat template is left out: the router applies it, and workers only see the resulting tokens.
    """
    paths = [directory / name for name in ("config.json", *VOCABULARY_FILES)]
    found: list[object] = [(path.name, _digest(path)) for path in paths if path.is_file()]
    settings = directory / TOKENIZER_CONFIG
    if settings.is_file():
        found.append({key: value for key, value in JsonObject.read(settings).values.items() if key != "chat_template"})
    return found


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
