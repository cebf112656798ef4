"""What is wrong with a value, in one line."""

from pydantic import ValidationError


def first_fault(error: ValidationError) -> str:
    """Where the first fault is, and what it is."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
