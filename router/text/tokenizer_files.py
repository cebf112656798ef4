"""Loading of a model directory's tokenizer files. Damaged files are reported by name when a router starts."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Tokenizer

# The class that every tokenizer.json loads into; AutoTokenizer would import torch for its model registry.
from transformers import PreTrainedTokenizerFast

from baton.engine.checkpoint.json_object import MAX_FILE_BYTES, JsonObject
from baton.engine.errors import InvalidCheckpoint
from baton.router.errors import is_panic

PLAIN_STEPS = frozenset({"ByteLevel", "TemplateProcessing", "Sequence"})
PROBES = ("a", "b c")


@dataclass(frozen=True, slots=True)
class SpecialTokenAffixes:
    """Special tokens that the tokenizer puts around every prompt."""

    first: Sequence[int]
    last: Sequence[int]


def find_special_token_affixes(tokenizer: Tokenizer) -> SpecialTokenAffixes | None:
    """Return the special tokens around every prompt; None if the post-processor may do something else."""
    post_processor = json.loads(tokenizer.to_str())["post_processor"]
    if post_processor is None:
        return SpecialTokenAffixes((), ())
    if not _is_plain(post_processor):
        return None
    found = [_ends(tokenizer, probe) for probe in PROBES]
    return found[0] if all(each == found[0] for each in found) else None


def _ends(tokenizer: Tokenizer, text: str) -> SpecialTokenAffixes | None:
    inner = tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.encode(text, add_special_tokens=True).ids
    if not inner:
        return None  # the position of an empty text is unknown
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return SpecialTokenAffixes(tuple(whole[:start]), tuple(whole[start + len(inner) :]))
    return None


def _is_plain(step: Mapping[str, Any]) -> bool:
    return step["type"] in PLAIN_STEPS and all(map(_is_plain, step.get("processors", ())))


T = TypeVar("T")

MAX_TOKEN_IDS = 1 << 22  # four times the largest vocabularies; bounds the tables that are indexed by token id
MAX_ERROR_CHARS = 500
JSON_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# Covers every byte of UTF-8: a vocabulary may lack both a byte and an unknown token.
SHORT, LONG = range(0xC0), range(0xC0, 0x800, 0x40)  # of up to two bytes
LONGER, LONGEST = (0x800, *range(0x1000, 0x10000, 0x1000)), (0x10000, *range(0x40000, 0x110000, 0x40000))
PROBE = "".join(map(chr, (*SHORT, *LONG, *LONGER, *LONGEST)))


def read_tokenizer(directory: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer without truncation and padding, after a trial of encoding and decoding.

    Raises FileNotFoundError if the directory has no tokenizer.json, InvalidCheckpoint if a file is damaged.
    """
    path = Path(directory) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{directory} has no tokenizer.json; save the model's fast tokenizer there")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InvalidCheckpoint(f"{path} has over {MAX_FILE_BYTES} bytes")
    pretrained: PreTrainedTokenizerFast = usable(
        directory, lambda: PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    )
    usable(directory, lambda: _try(pretrained))
    return pretrained


def usable(directory: str, make: Callable[[], T]) -> T:
    """Return the result of `make`. Converts its errors and panics to InvalidCheckpoint with the library's message."""
    try:
        return make()
    except InvalidCheckpoint:
        raise
    except Exception as error:  # damaged files may cause any error in the libraries
        raise _damaged(directory, error) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise _damaged(directory, error) from error


def _try(pretrained: PreTrainedTokenizerFast) -> None:
    backend = pretrained.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    token_ids = backend.get_vocab().values()
    last_id = max(token_ids, default=-1)
    if last_id < 0:
        raise ValueError("the vocabulary is empty")
    if last_id >= MAX_TOKEN_IDS:
        raise ValueError(f"the vocabulary has the token id {last_id}, over the limit of {MAX_TOKEN_IDS}")
    backend.decode(backend.encode(PROBE).ids)
    backend.decode_batch([[], *([token_id] for token_id in token_ids)])  # some decoders fail if no text is left


def _damaged(directory: str, error: BaseException) -> InvalidCheckpoint:
    """Return an error that names the first file that is not a JSON object, otherwise one with the library's message."""
    for path in (Path(directory) / name for name in JSON_FILES):
        try:
            if path.exists():
                JsonObject.read(path)
        except InvalidCheckpoint as damage:
            return damage
    reason = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
    return InvalidCheckpoint(f"the tokenizer in {directory} cannot be used: {reason}")
