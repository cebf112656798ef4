"""Request fields of tools: their definitions, and which of them the model may or must call."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from baton.router.anthropic.blocks import MAX_KIND_CHARS, CacheControl
from baton.router.errors import FieldError
from baton.router.limits import MAX_ENTRIES
from baton.router.openai.request_body import BOOLEAN, AtMost, RequestBody
from baton.router.openai.tools import (
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
    OBJECT_SCHEMA,
    NamedFunction,
    NamedTool,
    object_schema,
)

NAME_PATTERN = "^[a-zA-Z0-9_.-]{1,128}$"  # Anthropic's, and dots


class CustomTool(RequestBody):
    """A tool that the client runs."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    input_schema: Annotated[dict[str, object], BeforeValidator(object_schema), WithJsonSchema(OBJECT_SCHEMA)]
    type: Literal["custom"] = "custom"
    description: str | None = None
    strict: bool = False
    cache_control: CacheControl | None = None
    eager_input_streaming: bool = False  # ignored: the input is always streamed as the model writes it
    defer_loading: Annotated[Literal[False], BOOLEAN] = False
    input_examples: Annotated[list[dict[str, object]], Field(fail_fast=True), AtMost(MAX_ENTRIES)] | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Field(fail_fast=True), AtMost(1)] | None = None

    def chat_tool(self) -> Mapping[str, object]:
        """Return the tool as one of a chat request."""
        function: dict[str, object] = {"name": self.name, "parameters": self.input_schema, "strict": self.strict}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": function}


def _custom(value: object) -> object:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "custom":
        text = "{kind} is not supported: this server runs no tools; define a tool of type custom with an input_schema"
        raise PydanticCustomError("server_tool", text, {"kind": kind[:MAX_KIND_CHARS]})
    return value


def _bounded(tools: list[CustomTool]) -> list[CustomTool]:
    num_bytes = sum(len(orjson.dumps(each.chat_tool())) for each in tools)
    if num_bytes > MAX_TOOLS_BYTES:
        counts = {"num": num_bytes, "count": MAX_TOOLS_BYTES}
        raise PydanticCustomError("too_large", "has {num} bytes, but at most {count} are accepted", counts)
    return tools


Tools = Annotated[
    list[Annotated[CustomTool, BeforeValidator(_custom)]],
    Field(fail_fast=True),
    AtMost(MAX_TOOLS),
    AfterValidator(_bounded),
]


class AutoChoice(RequestBody):
    """The model decides whether it calls tools."""

    type: Literal["auto"]
    disable_parallel_tool_use: bool = False


class AnyChoice(RequestBody):
    """The model must call a tool."""

    type: Literal["any"]
    disable_parallel_tool_use: bool = False


class NamedChoice(RequestBody):
    """The model must call this tool."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


class NoChoice(RequestBody):
    """The model must not call tools, which it does not see."""

    type: Literal["none"]


ToolChoice = Annotated[AutoChoice | AnyChoice | NamedChoice | NoChoice, Field(discriminator="type")]


def check_tools(tools: Sequence[CustomTool], choice: ToolChoice | None) -> None:
    """Raise FieldError for duplicate names, and for a choice that requires a call of a tool that does not exist."""
    places: dict[str, int] = {}
    for place, tool in enumerate(tools):
        if places.setdefault(tool.name, place) != place:
            field = f"tools[{place}].name"
            raise FieldError(field, f"{field}: {tool.name} is also the name of tools[{places[tool.name]}]")
    if isinstance(choice, AnyChoice | NamedChoice) and not tools:
        raise FieldError("tool_choice", "tool_choice requires a call, but the request has no tools")
    if isinstance(choice, NamedChoice) and choice.name not in places:
        raise FieldError("tool_choice.name", f"tool_choice.name: no tool has the name {choice.name[:64]!r}")


def chat_choice(choice: ToolChoice | None) -> object:
    """Return `tool_choice` of a chat request."""
    match choice:
        case NamedChoice(name=name):
            return NamedTool(type="function", function=NamedFunction(name=name))
        case AnyChoice():
            return "required"
        case NoChoice():
            return "none"
        case _:
            return None


def is_parallel(choice: ToolChoice | None) -> bool:
    """Return whether the model may call several tools at once."""
    return choice is None or isinstance(choice, NoChoice) or not choice.disable_parallel_tool_use
