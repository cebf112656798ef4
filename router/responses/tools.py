"""The tools of a response request, which have the fields of their function at the top, and the choice among them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, GetCoreSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from baton.router.openai.request_body import AtMost, RequestBody
from baton.router.openai.tools import MAX_TOOLS, FunctionDefinition
from baton.router.responses.items import ByType, Json


class FlatFunction(FunctionDefinition):
    """A function that the model may call."""

    type: Literal["function"]
    defer_loading: Literal[False] | None = None
    output_schema: dict[str, object] | None = None  # ignored
    allowed_callers: list[Literal["direct"]] | None = None

    def chat_tool(self) -> Json:
        """Return the tool of a chat request."""
        ignored = {"type", "defer_loading", "output_schema", "allowed_callers"}
        return {"type": "function", "function": self.model_dump(exclude_unset=True, exclude=ignored)}

    def shown(self) -> Json:
        """Return the tool as responses repeat it: OpenAI's client requires the fields without a value, too."""
        own = {"type": self.type, "name": self.name, "parameters": self.parameters, "strict": self.strict is True}
        return {**own, "description": self.description}


FlatTools = Annotated[
    list[Annotated[FlatFunction, ByType("tools", {"function": FlatFunction})]],
    Field(fail_fast=True),
    AtMost(MAX_TOOLS),
]


class NamedFunction(RequestBody):
    """One of the functions."""

    type: Literal["function"]
    name: str


class AllowedFunctions(RequestBody):
    """Some of the functions, which the model may or must call."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[NamedFunction, ByType("tools", {"function": NamedFunction})]],
        Field(min_length=1, fail_fast=True),
        AtMost(MAX_TOOLS),
    ]


MODES = ("none", "auto", "required")
CHOICES: Mapping[str, type[RequestBody]] = {"function": NamedFunction, "allowed_tools": AllowedFunctions}


class _Choice(ByType):
    """Validates an object by its type, and accepts the name of a mode."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic: how the field is checked."""

        def validate(value: object, check: ValidatorFunctionWrapHandler) -> object:
            if isinstance(value, str):
                if value not in MODES:
                    text = 'must be "none", "auto", "required", a function or allowed_tools'
                    raise PydanticCustomError("tool_choice", text)
                return value
            return check(value)

        by_type = super().__get_pydantic_core_schema__(source, handler)
        return no_info_wrap_validator_function(validate, by_type)


FlatToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions,
    _Choice("choices", CHOICES),
]


def chat_choice(choice: str | NamedFunction | AllowedFunctions) -> object:
    """Return the `tool_choice` of a chat request."""
    match choice:
        case NamedFunction():
            return _named(choice)
        case AllowedFunctions():
            allowed = {"mode": choice.mode, "tools": [_named(each) for each in choice.tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
        case _:
            return choice


def _named(function: NamedFunction) -> Json:
    return {"type": "function", "function": {"name": function.name}}


def chat_tools(tools: Sequence[FlatFunction]) -> list[Json]:
    """Return the `tools` of a chat request."""
    return [tool.chat_tool() for tool in tools]
