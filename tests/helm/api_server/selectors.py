"""Which objects of a list are meant."""

import re
from collections.abc import Callable, Mapping

from tests.helm.api_server.errors import Json, bad_request

Selector = Callable[[Json], bool]

_REQUIREMENT = re.compile(r"\s*([^\s=!,()]+)\s*(?:(=|==|!=)\s*([^\s,()]*)|(in|notin)\s*\(([^)]*)\))?\s*")
_ABSENT = re.compile(r"\s*!\s*([^\s=!,()]+)\s*")
_BETWEEN = re.compile(r",(?![^(]*\))")  # no comma of a set


def selector(label_text: str, field_text: str) -> Selector:
    """Of the two parameters of a list. Raises ApiError if either makes no sense."""
    by_label = [_label_requirement(each) for each in _BETWEEN.split(label_text) if each.strip()]
    by_field = [_field_requirement(each) for each in field_text.split(",") if each.strip()]

    def matches(written: Json) -> bool:
        labels = written["metadata"].get("labels") or {}
        return all(each(labels) for each in by_label) and all(each(written) for each in by_field)

    return matches


def _label_requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    if absent := _ABSENT.fullmatch(text):
        return lambda labels: absent[1] not in labels
    requirement = _REQUIREMENT.fullmatch(text)
    if requirement is None:
        raise bad_request(f"unable to parse requirement: {text!r}")
    key, sign, value, word, values = requirement.groups()
    if word is not None:
        named = {each.strip() for each in values.split(",")}
        return lambda labels: (labels.get(key) in named) == (word == "in")
    if sign is None:
        return lambda labels: key in labels
    return lambda labels: (labels.get(key) == value) == (sign != "!=")


def _field_requirement(text: str) -> Selector:
    path, sign, value = re.split(r"(!=|==|=)", text, maxsplit=1) if "=" in text else (text, "", "")
    if not sign:
        raise bad_request(f"invalid selector: {text!r}; can't understand it")

    def matches(written: Json) -> bool:
        found: object = written
        for each in path.strip().split("."):
            found = found.get(each, "") if isinstance(found, dict) else ""
        return (str(found) == value.strip()) == (sign != "!=")

    return matches
