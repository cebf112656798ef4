"""Fingerprint of everything that two engines must have in common to exchange KV."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.checkpoint.vocabulary import token_ids
from baton.engine.config import TOKENIZER, ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import KVCacheLayout

PROTOCOL_VERSION = 3  # increment when the meaning of a block's bytes, or what a fingerprint covers, changes
TOKENIZER_CONFIG = "tokenizer_config.json"
VOCABULARY_FILES = (TOKENIZER, "special_tokens_map.json", "added_tokens.json")


def compatibility_fingerprint(
    directory: Path,
    config: ModelConfig,
    block_size: int,
    weights_revision: str,
    tokenizer: Path | None = None,
    num_parts: int = 1,
    kv_dtype: str = "auto",
    quantization: str | None = None,
    groups: KVGroups | None = None,
) -> str:
    """Return a fingerprint that is equal for two engines if and only if each can use the other's blocks.

    It covers model, weights, dtype, layout, KV groups and protocol, and also the vocabulary, so that a request's tokens
    mean the same to both. `config` is that of the whole model: all ranks that hold some of a block's `num_parts` shards
    have the same fingerprint. `tokenizer` is the tokenizer's directory, if not the model's. The fingerprint starts with
    the protocol version, so releases that compute it differently never match by accident. Raises InvalidCheckpoint if a
    file cannot be read.
    """
    layout = KVCacheLayout.of(config, block_size, num_parts, kv_dtype=kv_dtype, groups=groups)
    small = _small_files(directory, tokenizer or directory)
    return _fingerprint([asdict(config), repr(layout), small, weights_revision, quantization, *_windows(groups)])


# Fields of a config that may differ between quantizations of one model, and do not change what its KV means.
_OF_WEIGHTS = ("stored_quantization", "dtype", "tie_word_embeddings", "may_lack_head", "num_nextn_predict_layers")
_OF_OUTPUT = ("eos_token_ids", "max_model_len")


def mixed_fingerprint(
    tokenizer: Path,
    config: ModelConfig,
    block_size: int,
    num_parts: int = 1,
    kv_dtype: str = "auto",
    groups: KVGroups | None = None,
) -> str:
    """Return a fingerprint that is equal for engines with differently quantized weights of one model.

    It covers the KV itself: the model's shape with its rotary embedding, the type, layout and groups of blocks, and the
    token ids of the vocabulary in the directory `tokenizer`; but neither weights nor files as such, which other
    publishers write differently. It never equals a `compatibility_fingerprint`. Raises InvalidCheckpoint if the
    vocabulary cannot be read.
    """
    layout = KVCacheLayout.of(config, block_size, num_parts, kv_dtype=kv_dtype, groups=groups)
    shape = {name: value for name, value in asdict(config).items() if name not in (*_OF_WEIGHTS, *_OF_OUTPUT)}
    ids = token_ids(tokenizer / TOKENIZER)
    return _fingerprint(["mixed quantization", _rounded(shape), repr(layout), ids, *_windows(groups)])


def _windows(groups: KVGroups | None) -> list[object]:
    return [asdict(groups)] if groups is not None and groups.has_windows else []


def _rounded(value: object) -> object:
    """Return a value with its floats rounded: GGUF files have them in single precision."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _fingerprint(parts: list[object]) -> str:
    described = json.dumps(parts, sort_keys=True, default=sorted)  # sets are unordered
    return f"{PROTOCOL_VERSION}-{hashlib.blake2b(described.encode(), digest_size=16).hexdigest()}"


def _small_files(directory: Path, tokenizer: Path) -> list[object]:
    """Return digests of the model's config and vocabulary files. Raises InvalidCheckpoint.

    The chat template is left out: the router applies it, and workers only see the resulting tokens.
    """
    paths = [directory / "config.json", *(tokenizer / name for name in VOCABULARY_FILES)]
    found: list[object] = [(path.name, _digest(path)) for path in paths if path.is_file()]
    settings = tokenizer / TOKENIZER_CONFIG
    if settings.is_file():
        found.append({key: value for key, value in JsonObject.read(settings).values.items() if key != "chat_template"})
    return found


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
