"""Structural tags: free text with parts that follow a format (xgrammar's "structural tag" in JSON)."""

from baton.engine.grammar.schema.json_schema import MAX_COUNT, check_schema
from baton.engine.grammar.schema.place import Place
from baton.engine.grammar.schema.regex import check_counts, check_regex

MAX_PARTS = 4096  # JSON objects outside of schemas
SCHEMA_TYPES = ("json_schema", "qwen_xml_parameter")


def current_tag(tag: object) -> object:
    """Return a structural tag in its current form: vLLM's older one has `structures` and `triggers`, but no `format`.

    Raises ValueError for structures of another form.
    """
    if not isinstance(tag, dict) or "structures" not in tag or tag.get("format") is not None:
        return tag
    structures = tag["structures"]
    if not isinstance(structures, list) or not all(isinstance(each, dict) for each in structures):
        raise ValueError("structures must be a list of objects")
    for number, each in enumerate(structures):
        for name in ("begin", "schema", "end"):
            if name not in each:
                raise ValueError(f"structures[{number}]: {name} is missing")
    triggered = {
        "type": "triggered_tags",
        "triggers": tag.get("triggers") or [],
        "tags": [
            {"type": "tag", "begin": each["begin"], "content": _schema_format(each["schema"]), "end": each["end"]}
            for each in structures
        ],
    }
    return {"type": "structural_tag", "format": triggered}


def _schema_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": schema}


def check_structural_tag(tag: object) -> None:
    """Raise ValueError for a tag whose schemas or regular expressions would not be enforced as they are."""
    if not isinstance(tag, dict):
        raise ValueError("it must be a JSON object")
    pending: list[tuple[Place, object]] = [(Place(), tag)]
    num_parts = 0
    while pending:
        place, current = pending.pop()
        num_parts += isinstance(current, dict)
        if num_parts > MAX_PARTS:
            raise ValueError(f"the tag has over {MAX_PARTS} parts; simplify it")
        if isinstance(current, list):
            pending += [(Place(f"[{number}]", place), inner) for number, inner in enumerate(current)]
        elif isinstance(current, dict):
            try:
                _check_format(current)
            except ValueError as error:
                raise ValueError(f"{str(place) or 'the tag'}: {error}") from None
            pending += [(Place(f".{name}", place), inner) for name, inner in current.items() if name != "json_schema"]
        elif isinstance(current, (int, float)) and not abs(current) <= MAX_COUNT:
            raise ValueError(f"{place}: it must be a number from -{MAX_COUNT} to {MAX_COUNT}")


def _check_format(part: dict[str, object]) -> None:
    if part.get("max_tokens") is not None:
        # The compiler counts tokens only while masks are filled, so a moved request would get other tokens.
        raise ValueError("max_tokens in a structural tag is not supported; bound the length by a regex")
    if part.get("type") == "repeat":
        _check_repeat(part)
    if part.get("type") in SCHEMA_TYPES and "json_schema" in part:
        check_schema(part["json_schema"])
    elif part.get("type") == "regex" and isinstance(part.get("pattern"), str):
        check_regex(str(part["pattern"]))
    elif part.get("type") == "grammar" and isinstance(part.get("grammar"), str):
        check_counts(str(part["grammar"]))


def _check_repeat(part: dict[str, object]) -> None:
    """Raise ValueError for counts that the compiler refuses, for some of them without a reason."""
    for name, least, meaning in (("min", 0, ""), ("max", -1, " (no maximum)")):
        count = part.get(name)
        if type(count) is not int or not least <= count <= MAX_COUNT:
            raise ValueError(f"{name} must be a whole number from {least}{meaning} to {MAX_COUNT}")
    minimum, maximum = part["min"], part["max"]
    assert isinstance(minimum, int)
    assert isinstance(maximum, int)
    if minimum > maximum != -1:
        raise ValueError("min must not exceed max")
