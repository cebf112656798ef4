"""Validation of prompts and token ids in request bodies.

They may be long, so they are validated here and not by pydantic: a list's length before its elements, and the types of
all elements at once.
"""

from collections.abc import Iterator

from baton.router.errors import FieldError
from baton.router.limits import context_error
from baton.router.openai.request_body import MAX_EXACT

Prompt = str | list[int]

TOKEN_ID, PROMPTS = "Token id", "Prompts"  # titles of types that the model and the config limit
TOKEN_IDS_SCHEMA: dict[str, object] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "title": TOKEN_ID},
}
TEXT_SCHEMA: dict[str, object] = {"type": "string", "minLength": 1}
PROMPT_SCHEMA: dict[str, object] = {
    "anyOf": [
        TEXT_SCHEMA,
        {"type": "array", "minItems": 1, "items": TEXT_SCHEMA, "title": PROMPTS},
        {**TOKEN_IDS_SCHEMA, "minItems": 1},
        {"type": "array", "minItems": 1, "items": {**TOKEN_IDS_SCHEMA, "minItems": 1}, "title": PROMPTS},
    ]
}
SLICE_IDS = 4096  # checked at once
KINDS = "prompt must be a string, a list of strings, a list of token ids or a list of such lists"


def read_prompts(given: object, max_prompts: int, context_len: int) -> Iterator[Prompt]:
    """Yield the prompts, each validated only when it is reached: hundreds of thousands of ids take a while.

    Raises FieldError for other types than the four kinds, and above the limits.
    """
    if isinstance(given, str):
        yield given
        return
    if not isinstance(given, list):
        raise FieldError("prompt", KINDS)
    if not given:
        raise FieldError("prompt", "prompt is empty; at least one token is needed")
    if type(given[0]) in (int, float):
        yield _prompt_ids(given, "prompt", context_len)
        return
    if len(given) > max_prompts:
        raise FieldError("prompt", f"prompt has {len(given)} prompts, over the limit of {max_prompts}")
    is_ids = isinstance(given[0], list)
    for place, each in enumerate(given):
        yield _prompt_ids(each, f"prompt[{place}]", context_len) if is_ids else _text(each, place)


def read_token_ids(given: object, name: str) -> list[int]:
    """Return a list of integers. Accepts 1.0, but neither true nor "1".

    Raises FieldError that names the first invalid element.
    """
    field = name.partition("[")[0]
    if not isinstance(given, list):
        raise FieldError(field, f"{name} is not a list of token ids")
    if set(map(type, given)) <= {int}:
        return given
    ids: list[int] = []
    for first in range(0, len(given), SLICE_IDS):
        part = given[first : first + SLICE_IDS]
        ids += _integers(part) or _checked(part, first, name, field)
    return ids


def _integers(part: list[object]) -> list[int] | None:
    """Return numbers as integers, without a Python loop; None if one of them is not certain to be a token id."""
    if not set(map(type, part)) <= {int, float}:
        return None
    try:
        ids = list(map(int, part))  # type: ignore[arg-type]  # numbers, as checked
    except (OverflowError, ValueError):  # infinite, or not a number
        return None
    return ids if ids == part and max(map(abs, ids)) <= MAX_EXACT else None


def _checked(part: list[object], first: int, name: str, field: str) -> list[int]:
    """Return the elements from `first` on as integers. Raises FieldError that names the first invalid one."""
    ids: list[int] = []
    for place, each in enumerate(part, first):
        if type(each) is int:
            ids.append(each)
        elif type(each) is float and each.is_integer() and abs(each) <= MAX_EXACT:
            ids.append(int(each))
        else:
            raise FieldError(field, f"{name}[{place}] is {_shown(each)}, but must be a token id")
    return ids


def _prompt_ids(given: object, name: str, context_len: int) -> list[int]:
    if isinstance(given, list) and len(given) >= context_len:
        raise context_error("prompt", context_len, len(given))
    return read_token_ids(given, name)


def _text(given: object, place: int) -> str:
    if not isinstance(given, str):
        raise FieldError("prompt", f"prompt[{place}] is {_shown(given)}; {KINDS}")
    return given


def _shown(value: object) -> str:
    """Return a value for an error message."""
    return repr(value) if isinstance(value, str | int | float | None) and len(repr(value)) < 50 else "something else"
