"""What two engines must have in common to exchange KV."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.kv.layout import KVCacheLayout

PROTOCOL_VERSION = 3  # raised whenever a block's bytes, or what a fingerprint covers, come to mean something else
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
) -> str:
    """Equal for two engines if and only if each can use the other's blocks: model, weights, dtype, layout, protocol.

    Equal ones also have one vocabulary, so that a request's tokens mean the same to both. `config` is that of the whole
    model: ranks that hold some of its blocks' `num_parts` parts have one fingerprint. It begins with the protocol's
    version: workers of releases that compute it in another way never have the same by accident.
    """
    layout = KVCacheLayout.of(config, block_size, num_parts, kv_dtype=kv_dtype)
    parts = [asdict(config), repr(layout), _small_files(directory), weights_revision, quantization]
    described = json.dumps(parts, sort_keys=True, default=sorted)  # sets have no order of their own
    return f"{PROTOCOL_VERSION}-{hashlib.blake2b(described.encode(), digest_size=16).hexdigest()}"


def _small_files(directory: Path) -> list[object]:
    """The model's config and its vocabulary, as they are in the files. Raises InvalidCheckpoint.

    The chat template is left out: the router applies it, and the tokens that come of it are the same to every worker.
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
