"""Vocabulary of a tokenizer: which token has which id; no torch."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import TOKENIZER


def token_ids(tokenizer: Path) -> Mapping[str, object]:
    """Return the id of each token of a tokenizer.json, added ones included; empty if there is no such file."""
    if not tokenizer.is_file():
        return {}
    described = JsonObject.read(tokenizer)
    model, added = described.inner("model"), described.values.get("added_tokens")
    ids: dict[str, object] = {}
    if isinstance(model.values.get("vocab"), list):  # Unigram: pieces with their scores, in the order of their ids
        ids["pieces"] = model.values["vocab"]
    else:
        ids |= model.inner("vocab").values
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict):
            ids[str(token.get("content"))] = token.get("id")
    return ids


def vocabulary_digest(directory: Path) -> str:
    """Return a digest of the vocabulary in a tokenizer's directory; empty if it has none.

    It leaves out the scores of Unigram pieces, and placeholders such as [PAD7] for the id 7, with which llama.cpp fills
    a vocabulary up to the size of the embedding. Raises InvalidCheckpoint if tokenizer.json cannot be read.
    """
    ids = dict(token_ids(directory / TOKENIZER))
    if isinstance(pieces := ids.get("pieces"), list):
        del ids["pieces"]
        ids = {str(piece[0]): place for place, piece in enumerate(pieces) if isinstance(piece, list) and piece} | ids
    known = {token: token_id for token, token_id in ids.items() if token != f"[PAD{token_id}]"}
    if not known:
        return ""
    return hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=8).hexdigest()
