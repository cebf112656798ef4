"""Chat messages of requests, and their conversion to the input of a chat template."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from baton.router.errors import FieldError
from baton.router.limits import MAX_TEMPLATE_OPTIONS
from baton.router.openai.request_body import AtMost, OrText, RequestBody
from baton.router.openai.tool_messages import CallId, KnownCalls, ToolCalls, check_arguments

MAX_PARTS = 8_192  # messages, and the parts of their contents, of one conversation


Role = Literal["developer", "system", "user", "assistant", "tool", "function"]
TextType = Literal["text", "input_text", "output_text", "refusal"]
ROLES: frozenset[str] = frozenset(get_args(Role))
TEXT_TYPES: frozenset[str] = frozenset(get_args(TextType))


def _text_only(kind: object) -> object:
    if isinstance(kind, str) and kind not in TEXT_TYPES:
        raise PydanticCustomError("text_only", "only text is supported")
    return kind


class ContentPart(RequestBody):
    """One part of a message's content; only text is supported."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": [name], "properties": {name: {"type": "string"}}} for name in ("text", "refusal")]
        }
    )

    type: Annotated[TextType, BeforeValidator(_text_only)]
    text: str | None = None
    refusal: str | None = None
    annotations: list[object] | None = None  # in an earlier response that the client sends back
    cache_control: dict[str, object] | None = None  # unnecessary, like the next field: all prompts are cached
    prompt_cache_breakpoint: dict[str, object] | None = None


class ChatMessage(RequestBody):
    """One message; additional fields are passed to the template unchanged."""

    model_config = ConfigDict(extra="allow")

    role: Role
    content: Annotated[
        list[Annotated[ContentPart, OrText(lambda text: {"type": "text", "text": text}, dict)]],
        Field(fail_fast=True),
        OrText(lambda text: [text]),
    ] = Field(default_factory=list)
    tool_calls: ToolCalls | None = None
    tool_call_id: CallId | None = None


def _bounded(value: object) -> object:
    """Reject conversations with too many parts before any part is validated."""
    if isinstance(value, list):
        check_arguments(each.get("tool_calls") for each in value if isinstance(each, dict))
        contents = (each.get("content") for each in value if isinstance(each, dict))
        num_parts = len(value) + sum(len(content) for content in contents if isinstance(content, list))
        if num_parts > MAX_PARTS:
            raise PydanticCustomError(
                "too_many",
                "has {num} messages and parts of messages, but at most {count} are accepted",
                {"num": num_parts, "count": MAX_PARTS},
            )
    return value


PlainMessage = Mapping[str, str]  # only a role and a text
PLAIN_KEYS = frozenset({"role", "content"})
REFUSAL = "refusal"
REASONING_NAMES = (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning"))
CheckedMessages = Annotated[list[ChatMessage], Field(fail_fast=True), BeforeValidator(_bounded)]
TemplateOptions = Annotated[dict[str, object], AtMost(MAX_TEMPLATE_OPTIONS)]


class PlainOrChecked:
    """Validator that returns plain messages unchanged, as most are plain; otherwise all become ChatMessages."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic: how the field is checked."""

        def validate(value: object, check: ValidatorFunctionWrapHandler) -> object:
            if type(value) is list and len(value) <= MAX_PARTS and all(map(_is_plain, value)):
                return value
            return check(value)

        return no_info_wrap_validator_function(validate, handler.generate_schema(CheckedMessages))

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """pydantic: how the field is described."""
        return {**handler(core_schema), "minItems": 1, "maxItems": MAX_PARTS}


def _is_plain(value: object) -> bool:
    if type(value) is not dict or value.keys() != PLAIN_KEYS:
        return False
    role = value["role"]
    return type(value["content"]) is str and type(role) is str and role in ROLES


Messages = Annotated[Sequence[ChatMessage | PlainMessage], PlainOrChecked()]


def template_messages(messages: Sequence[ChatMessage | PlainMessage]) -> Sequence[Mapping[str, object]]:
    """Return the messages with each content as one text and the arguments of tool calls as objects.

    Raises FieldError for an empty list, a part without text, or the result of an unknown call.
    """
    if not messages:
        raise FieldError("messages", "messages is empty; at least one message is needed")
    known = KnownCalls()
    return [
        _template_message(message, place, known) if isinstance(message, ChatMessage) else message
        for place, message in enumerate(messages)
    ]


def _template_message(message: ChatMessage, place: int, known: KnownCalls) -> Mapping[str, object]:
    extra = message.model_extra or {}
    shown = {**extra, "role": message.role, "content": _text(message, place)}
    if not message.content and isinstance(refusal := extra.get(REFUSAL), str):  # as a response has it
        shown["content"] = refusal
    if message.tool_calls:
        known.add(message.tool_calls)
        shown["tool_calls"] = [call.shown() for call in message.tool_calls]
    if message.tool_call_id is not None:
        if message.role == "tool":
            known.check(message.tool_call_id, place)
        shown["tool_call_id"] = message.tool_call_id
    for name, other in REASONING_NAMES:  # responses have both, templates one of them
        if name in shown:
            shown.setdefault(other, shown[name])
    return shown


def _text(message: ChatMessage, place: int) -> str:
    texts: list[str] = []
    for index, part in enumerate(message.content):
        text = part.refusal if part.text is None else part.text
        if text is None:
            where = f"messages[{place}].content[{index}]"
            raise FieldError(where, f"{where} has no text")
        texts.append(text)
    return "\n".join(texts)
