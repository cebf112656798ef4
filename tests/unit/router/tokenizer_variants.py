"""The bundled tokenizer, made to split texts as other models' tokenizers do."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from baton.router.text.byte_level import CL100K_PATTERN, O200K_PATTERN
from tests.unit.router.rigs.running_router import MODEL

PATTERNS = {
    "digits by three": CL100K_PATTERN.replace("DIGITS", r"\p{N}{1,3}"),
    "digits alone": CL100K_PATTERN.replace("DIGITS", r"\p{N}"),
    "case": O200K_PATTERN,
}
VARIANTS = ("bundled", *PATTERNS, "normalised")


def bundled_parts() -> dict[str, Any]:
    """The bundled tokenizer.json."""
    parts: dict[str, Any] = json.loads((Path(MODEL) / "tokenizer.json").read_text())
    return parts


def split_by(pattern: str) -> dict[str, Any]:
    """Return a pre-tokenizer that splits by a pattern."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level]}


def make_tokenizer(**changes: object) -> Tokenizer:
    """The bundled tokenizer with some parts replaced."""
    return Tokenizer.from_str(json.dumps({**bundled_parts(), **changes}))


def make_variant(name: str) -> Tokenizer:
    """One of VARIANTS."""
    if name == "bundled":
        return make_tokenizer()
    if name == "normalised":
        return make_tokenizer(pre_tokenizer=split_by(PATTERNS["digits alone"]), normalizer={"type": "NFC"})
    return make_tokenizer(pre_tokenizer=split_by(PATTERNS[name]))


def added_token(content: str, token_id: int, **flags: bool) -> Mapping[str, object]:
    """Return an entry of a tokenizer.json's added tokens."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": content, **plain, **flags}
