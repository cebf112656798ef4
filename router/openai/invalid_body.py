"""The error for a body that its model refuses: the first problem, in OpenAI's words where it has some."""

import json

from pydantic import BaseModel, ValidationError

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError
from baton.router.openai.ignored_fields import NeutralFields
from baton.router.openai.unknown_fields import advice, template_advice

MAX_NAME_CHARS = 200
MAX_SHOWN_CHARS = 50


def invalid_body(model: type[BaseModel], error: ValidationError) -> InvalidRequest:
    """Return the error for the first problem of a body."""
    problem = error.errors(include_url=False, include_context=False)[0]
    location = problem["loc"]
    if not location:
        return InvalidRequest("the body must be a JSON object" if "model" in problem["type"] else problem["msg"])
    name = _path(location)
    if problem["type"] == "extra_forbidden":
        text = f"Unrecognized request argument supplied: {name}"
        known = model.model_fields if len(location) == 1 else ()
        more = advice(str(location[0]), known)
        return FieldError(name, f"{text}. {more}" if more else text, "unknown_parameter")
    if location[0] in NeutralFields.__annotations__:
        text = f"{location[0]} is not supported by this server; leave it out"
        option = template_advice(str(location[0]), model.model_fields)
        return FieldError(str(location[0]), f"{text}. {option}" if option else text)
    shown = _shown(problem["input"])
    return FieldError(name, f"{name}: {problem['msg']}" + (f", not {shown}" if shown else ""))


def _shown(value: object) -> str:
    """Return a short scalar as JSON, and nothing for other values."""
    shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str | int | float) else ""
    return shown if len(shown) < MAX_SHOWN_CHARS else ""


def _path(location: tuple[int | str, ...]) -> str:
    """Return a field's place as OpenAI writes it: messages[0].role."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")[:MAX_NAME_CHARS]
