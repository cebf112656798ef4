"""Fields that take a text alone for a list of one, and bounds that hold before any element is looked at."""

from collections.abc import Sized

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def text_or_list() -> BeforeValidator:
    """Makes a text a list of one, and null an empty list; the elements are the field's business."""

    def convert(value: object) -> object:
        if isinstance(value, list):
            return value
        if value is None or isinstance(value, str):
            return [] if value is None else [value]
        raise PydanticCustomError("text_or_list", "must be a text or a list")

    return BeforeValidator(convert)


def at_most(count: int) -> BeforeValidator:
    """Refuses longer lists and objects."""

    def check(value: object) -> object:
        if not isinstance(value, str) and isinstance(value, Sized) and len(value) > count:
            raise PydanticCustomError(
                "too_many", "has {num} entries, but at most {count} are taken", {"num": len(value), "count": count}
            )
        return value

    return BeforeValidator(check)
