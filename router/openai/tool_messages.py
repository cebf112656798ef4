"""Tool calls of earlier assistant messages, and their results, as input of a chat template."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import orjson
from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError

from baton.router.errors import FieldError
from baton.router.http.json_parts import MAX_ELEMENTS, MAX_OBJECTS, count_parts
from baton.router.limits import MAX_TEXT_CHARS
from baton.router.openai.request_body import AtMost, RequestBody

MAX_CALLS = 4096  # of one message
ARGUMENTS_SCHEMA: JsonSchemaValue = {
    "anyOf": [{"type": "string", "contentMediaType": "application/json"}, {"type": "object"}]
}
CallId = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]


def check_arguments(calls_of_messages: Iterable[object]) -> None:
    """Raise PydanticCustomError if the JSON texts of all calls have more parts than a body may have.

    In the body they are strings, whose parts are not counted. Nothing has been validated yet.
    """
    num_objects, num_elements = 0, 0
    for calls in calls_of_messages:
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            text = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(text, str):
                parts = count_parts(text.encode(), MAX_OBJECTS, MAX_ELEMENTS)
                num_objects += parts.num_objects
                num_elements += parts.num_elements
            if num_objects > MAX_OBJECTS or num_elements > MAX_ELEMENTS:
                raise PydanticCustomError(
                    "too_many",
                    "has calls whose arguments have over {objects} lists, objects and keys or {elements} elements",
                    {"objects": MAX_OBJECTS, "elements": MAX_ELEMENTS},
                )


def _arguments(value: object) -> object:
    """Return the object that the JSON holds: templates write arguments as their models do. Other JSON stays text."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("arguments", "must be a string with JSON")
    try:
        parsed = orjson.loads(value) if value.strip() else {}
    except orjson.JSONDecodeError:
        raise PydanticCustomError("arguments", "must be valid JSON") from None
    return parsed if isinstance(parsed, dict) else value


class CalledFunction(RequestBody):
    """A function that the model called, with its arguments."""

    model_config = ConfigDict(extra="allow")

    name: str
    arguments: Annotated[object, BeforeValidator(_arguments), WithJsonSchema(ARGUMENTS_SCHEMA)] = Field(
        default_factory=dict
    )


class ToolCall(RequestBody):
    """A call in an earlier message; additional fields are passed to the template unchanged."""

    model_config = ConfigDict(extra="allow")

    id: CallId | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    def shown(self) -> Mapping[str, object]:
        """Return the call for the chat template."""
        function = self.function
        called = {"name": function.name, "arguments": function.arguments, **(function.model_extra or {})}
        call = {"type": self.type, "function": called, **(self.model_extra or {})}
        return call if self.id is None else {"id": self.id, **call}


ToolCalls = Annotated[list[ToolCall], Field(fail_fast=True), AtMost(MAX_CALLS)]


class KnownCalls:
    """Ids of the calls in a conversation so far."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def add(self, calls: list[ToolCall]) -> None:
        """Add the calls of an assistant message."""
        self._ids.update(call.id for call in calls if call.id is not None)

    def check(self, call_id: str, place: int) -> None:
        """Raise FieldError unless the message at `place` has the result of an earlier call."""
        if call_id not in self._ids:
            field = f"messages[{place}].tool_call_id"
            text = f"{field}: no earlier message has a tool call with the id {call_id[:64]!r}"
            raise FieldError(field, text)
