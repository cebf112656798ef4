"""Input items of a response: messages, function calls and their outputs, reasoning, references to stored items."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from baton.router.openai.ignored_fields import Label
from baton.router.openai.messages import MAX_PARTS, TEXT_TYPES, ContentPart, TextType, text_or_image_rule
from baton.router.openai.request_body import OrText, RequestBody
from baton.router.openai.tool_messages import CallId

Json = dict[str, object]
Status = Literal["in_progress", "completed", "incomplete"]


class TextPart(ContentPart):
    """One part of a message or of a function's output; the fields below are ignored."""

    logprobs: list[object] | None = None
    parsed: object | None = None  # added by OpenAI's client


INPUT_IMAGE = "input_image"
Parts = Annotated[
    list[TextPart], Field(fail_fast=True), OrText(lambda text: [{"type": "text", "text": text}])
]  # stored with the type that the item's role has


def _text_or_image(kind: object) -> object:
    if isinstance(kind, str) and kind not in TEXT_TYPES and kind != INPUT_IMAGE:
        raise PydanticCustomError("text_or_image", "only text and input_image are supported")
    return kind


class MessagePart(TextPart):
    """One part of a message: a text, or an image as a URL. `detail` is ignored."""

    model_config = ConfigDict(json_schema_extra=text_or_image_rule(INPUT_IMAGE, {"type": "string"}))

    type: Annotated[TextType | Literal["input_image"], BeforeValidator(_text_or_image)]  # type: ignore[assignment]
    image_url: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None
    file_id: None = None


MessageParts = Annotated[
    list[MessagePart], Field(fail_fast=True), OrText(lambda text: [{"type": "text", "text": text}])
]


class MessageItem(RequestBody):
    """A message, of the client or of an earlier response."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: MessageParts
    id: Label | None = None
    status: Status | None = None
    phase: Label | None = None


class FunctionCallItem(RequestBody):
    """A call of a function in an earlier response."""

    type: Literal["function_call"]
    call_id: CallId
    name: str
    arguments: str
    id: Label | None = None
    status: Status | None = None
    namespace: None = None
    caller: dict[str, object] | None = None
    parsed_arguments: object | None = None  # added by OpenAI's client


class FunctionOutputItem(RequestBody):
    """The output of a function that an earlier response called."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Parts
    id: Label | None = None
    status: Status | None = None
    name: Label | None = None
    namespace: None = None
    caller: dict[str, object] | None = None


class ReasoningText(RequestBody):
    """A text of the model's reasoning, or of a summary of it."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(RequestBody):
    """The model's reasoning in an earlier response. `encrypted_content` is ignored: this server writes none."""

    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningText], Field(fail_fast=True)] = Field(default_factory=list)
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] | None = None
    encrypted_content: str | None = None
    id: Label | None = None
    status: Status | None = None


class ReferenceItem(RequestBody):
    """Stands for an item of a stored response."""

    type: Literal["item_reference"]
    id: Label


InputItem = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem | ReferenceItem
ITEMS: Mapping[str, type[RequestBody]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionOutputItem,
    "reasoning": ReasoningItem,
    "item_reference": ReferenceItem,
}


class ByType:
    """Validates an object by the model for its `type`.

    The location of an error does not name the model, as it would in one of pydantic's unions.
    """

    def __init__(self, noun: str, models: Mapping[str, type[RequestBody]], default: str | None = None) -> None:
        """`noun` names the objects in errors. `default`: the type of objects without one."""
        self._noun = noun
        self._models = models
        self._default = default

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic: how the field is checked."""

        def validate(value: object, _check: ValidatorFunctionWrapHandler) -> object:
            if not isinstance(value, dict):
                raise PydanticCustomError("dict_type", "must be an object")
            kind = value.get("type")
            model = self._models.get(str(self._default if kind is None else kind))
            if model is None:
                context = {"noun": self._noun, "kind": str(kind)[:64], "known": ", ".join(self._models)}
                text = "{noun} of type '{kind}' are not supported by this server, which has {known}"
                raise PydanticCustomError("by_type", text, context)
            return model.model_validate(value)

        return no_info_wrap_validator_function(validate, handler(source))

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """pydantic: how the field is described."""
        return handler(core_schema)


class BoundedItems:
    """Rejects too many items and parts of items before any of them is validated."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic: how the field is checked."""

        def check(value: object, validate: ValidatorFunctionWrapHandler) -> object:
            num_parts = count_parts(value) if isinstance(value, list) else 0
            if num_parts > MAX_PARTS:
                counts = {"num": num_parts, "count": MAX_PARTS}
                text = "has {num} items and parts of items, but at most {count} are accepted"
                raise PydanticCustomError("too_many", text, counts)
            return validate(value)

        return no_info_wrap_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """pydantic: how the field is described."""
        return {**handler(core_schema), "maxItems": MAX_PARTS}


def count_parts(items: Sequence[object]) -> int:
    """Return the number of items and of the parts of their contents, outputs and summaries."""
    parts = (each.get(name) for each in items if isinstance(each, dict) for name in ("content", "output", "summary"))
    return len(items) + sum(len(each) for each in parts if isinstance(each, list))


Items = Annotated[list[Annotated[InputItem, ByType("items", ITEMS, "message")]], Field(fail_fast=True), BoundedItems()]
Input = Annotated[Items, OrText(lambda text: [{"role": "user", "content": text}])]
STORED_ITEMS: TypeAdapter[list[InputItem]] = TypeAdapter(Items)

ID_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}


def stored_item(item: InputItem, item_id: str) -> Json:
    """Return an item as it is stored and listed: with `item_id`, unless it has an id, and a type for each text."""
    fields = item.model_dump(exclude_none=True, exclude={"parsed_arguments", "encrypted_content", "caller"})
    stored: Json = {"id": item_id, **fields}
    match item:
        case MessageItem():
            stored["content"] = [_stored_part(part, item.role == "assistant") for part in item.content]
        case FunctionOutputItem():
            stored["output"] = [_stored_part(part, is_output=False) for part in item.output]
        case ReasoningItem():
            return stored
    return {"status": "completed", **stored}


def _stored_part(part: TextPart, is_output: bool) -> Json:
    if isinstance(part, MessagePart) and part.type == INPUT_IMAGE:
        return {"type": INPUT_IMAGE, "image_url": part.image_url, "detail": part.detail or "auto"}
    if part.text is None:
        return {"type": "refusal", "refusal": part.refusal or ""}
    if is_output:
        return {"type": "output_text", "text": part.text, "annotations": []}
    return {"type": "input_text", "text": part.text}
