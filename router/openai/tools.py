"""Request fields of tools: the functions that the model may call, and which of them it may or must call."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import orjson
from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from baton.engine.grammar.grammar import MAX_NESTING, nesting
from baton.router.errors import FieldError
from baton.router.openai.request_body import AtMost, RequestBody
from baton.router.output.rules import NO_TOOLS, ToolUse
from baton.router.parsing.base import Tool

MAX_TOOLS = 1024
MAX_TOOLS_BYTES = 1 << 20  # of the JSON of all tools of a request
NAME_PATTERN = "^[a-zA-Z0-9_.-]{1,64}$"  # OpenAI's, and dots as in vLLM

FunctionName = Annotated[str, Field(pattern=NAME_PATTERN)]


def object_schema(value: object) -> object:
    """Validator: reject a JSON Schema of anything but objects, or one that is nested too deeply."""
    if isinstance(value, dict):
        if value.get("type", "object") != "object":
            raise PydanticCustomError("object_schema", 'must be a JSON Schema with type "object"')
        if nesting(value) > MAX_NESTING:
            raise PydanticCustomError("nested", "is nested over {levels} levels deep", {"levels": MAX_NESTING})
    return value


OBJECT_SCHEMA: JsonSchemaValue = {"type": "object", "properties": {"type": {"const": "object"}}}


class FunctionDefinition(RequestBody):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: Annotated[dict[str, object], BeforeValidator(object_schema), WithJsonSchema(OBJECT_SCHEMA)] | None = (
        None
    )
    strict: bool | None = None


class FunctionTool(RequestBody):
    """A tool of the only supported type."""

    type: Literal["function"]
    function: FunctionDefinition


CheckedTools = Annotated[list[FunctionTool], Field(fail_fast=True), AtMost(MAX_TOOLS)]


class AsSent:
    """Validator that checks tools and returns them as the client sent them: the template shows them to the model."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic: how the field is checked."""

        def validate(value: object, check: ValidatorFunctionWrapHandler) -> object:
            check(value)
            if value and (num_bytes := len(orjson.dumps(value))) > MAX_TOOLS_BYTES:
                counts = {"num": num_bytes, "count": MAX_TOOLS_BYTES}
                raise PydanticCustomError("too_large", "has {num} bytes, but at most {count} are accepted", counts)
            return value

        return no_info_wrap_validator_function(validate, handler.generate_schema(CheckedTools))

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """pydantic: how the field is described."""
        return handler(core_schema)


Tools = Annotated[Sequence[Mapping[str, object]], AsSent()]


class NamedFunction(RequestBody):
    """The name of one of the tools."""

    name: str


class NamedTool(RequestBody):
    """One of the tools."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(RequestBody):
    """Some of the tools, which the model may or must call."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, fail_fast=True), AtMost(MAX_TOOLS)]


class AllowedToolsChoice(RequestBody):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind(value: object) -> str | None:
    if isinstance(value, dict):
        return "allowed_tools" if value.get("type") == "allowed_tools" else "function"
    return "mode" if isinstance(value, str) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedTool, Tag("function")]
    | Annotated[AllowedToolsChoice, Tag("allowed_tools")],
    Discriminator(
        _kind,
        custom_error_type="tool_choice",
        custom_error_message='must be "none", "auto", "required", a function or allowed_tools',
    ),
]


def tool_use(tools: Sequence[Mapping[str, object]], choice: object, is_parallel: bool) -> ToolUse:
    """Return the use of tools that was validated. Raises FieldError for duplicate names and unknown functions.

    Without tools, only "none" and "auto" are choices.
    """
    places = _places(tools)
    is_required = choice == "required" or isinstance(choice, NamedTool)
    chosen = places
    if isinstance(choice, NamedTool):
        chosen = {choice.function.name: _place(choice, places, "tool_choice.function.name")}
    elif isinstance(choice, AllowedToolsChoice):
        is_required = choice.allowed_tools.mode == "required"
        chosen = {
            each.function.name: _place(each, places, f"tool_choice.allowed_tools.tools[{number}].function.name")
            for number, each in enumerate(choice.allowed_tools.tools)
        }
    if is_required and not tools:
        raise FieldError("tool_choice", "tool_choice requires a call, but the request has no tools")
    if not tools or choice == "none":
        return NO_TOOLS
    return ToolUse(
        offered=tuple(_offered(name, tools[place]) for name, place in chosen.items()),
        fields=tuple(f"tools[{place}].function.parameters" for place in chosen.values()),
        shown=tuple(map(shown_tool, tools)),
        is_required=is_required,
        is_limited=len(chosen) < len(tools),
        is_parallel=is_parallel,
    )


def shown_tool(tool: Mapping[str, object]) -> Mapping[str, object]:
    """Return a tool for the chat template, without `strict` and nulls: they do not describe the function."""
    function = _function(tool)
    described = {name: value for name, value in function.items() if value is not None and name != "strict"}
    return {"type": "function", "function": described}


def _function(tool: Mapping[str, object]) -> Mapping[str, object]:
    function = tool["function"]
    assert isinstance(function, dict)
    return function


def _places(tools: Sequence[Mapping[str, object]]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, tool in enumerate(tools):
        name = str(_function(tool)["name"])
        if places.setdefault(name, place) != place:
            text = f"tools[{place}].function.name: {name} is also the name of tools[{places[name]}]"
            raise FieldError(f"tools[{place}].function.name", text)
    return places


def _place(tool: NamedTool, places: Mapping[str, int], field: str) -> int:
    if tool.function.name not in places:
        raise FieldError(field, f"{field}: no tool has the name {tool.function.name[:64]!r}")
    return places[tool.function.name]


def _offered(name: str, tool: Mapping[str, object]) -> Tool:
    function = _function(tool)
    parameters = function.get("parameters") or {}
    assert isinstance(parameters, dict)
    return Tool(name=name, parameters=parameters, strict=function.get("strict") is True)
