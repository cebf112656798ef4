"""The tokens that a tokenizer puts before and after a prompt."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

PLAIN_STEPS = frozenset({"ByteLevel", "TemplateProcessing", "Sequence"})
PROBES = ("a", "b c")


@dataclass(frozen=True, slots=True)
class SpecialEnds:
    """What stands around every prompt."""

    first: Sequence[int]
    last: Sequence[int]


def find_special_ends(tokenizer: Tokenizer) -> SpecialEnds | None:
    """The tokens around a prompt, whatever it is; None for a tokenizer that may do something else to its end."""
    post_processor = json.loads(tokenizer.to_str())["post_processor"]
    if post_processor is None:
        return SpecialEnds((), ())
    if not _is_plain(post_processor):
        return None
    found = [_ends(tokenizer, probe) for probe in PROBES]
    return found[0] if all(each == found[0] for each in found) else None


def _ends(tokenizer: Tokenizer, text: str) -> SpecialEnds | None:
    inner = tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.encode(text, add_special_tokens=True).ids
    if not inner:
        return None  # nothing tells where it would be
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return SpecialEnds(tuple(whole[:start]), tuple(whole[start + len(inner) :]))
    return None


def _is_plain(step: Mapping[str, Any]) -> bool:
    return step["type"] in PLAIN_STEPS and all(map(_is_plain, step.get("processors", ())))
