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
from pydantic.config import JsonDict, JsonValue
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from baton.router.errors import FieldError
from baton.router.images.source import ImageSource
from baton.router.limits import MAX_TEMPLATE_OPTIONS
from baton.router.openai.request_body import AtMost, OrText, RequestBody
from baton.router.openai.tool_messages import CallId, KnownCalls, ToolCalls, check_arguments

MAX_PARTS = 8_192  # messages, and the parts of their contents, of one conversation


Role = Literal["developer", "system", "user", "assistant", "tool", "function"]
TextType = Literal["text", "input_text", "output_text", "refusal"]
IMAGE = "image_url"
ROLES: frozenset[str] = frozenset(get_args(Role))
TEXT_TYPES: frozenset[str] = frozenset(get_args(TextType))


def _text_only(kind: object) -> object:
    if isinstance(kind, str) and kind not in TEXT_TYPES:
        raise PydanticCustomError("text_only", "only text is supported")
    return kind


def _text_or_image(kind: object) -> object:
    if isinstance(kind, str) and kind not in TEXT_TYPES and kind != IMAGE:
        raise PydanticCustomError("text_or_image", "only text and image_url are supported")
    return kind


def text_or_image_rule(image_type: str, image: JsonDict) -> JsonDict:
    """Return the JSON schema rule that a part of type `image_type` has an `image_url`, and any other one a text."""
    rules: list[JsonValue] = [
        {"required": [name], "properties": {"type": {"not": {"const": image_type}}, name: {"type": "string"}}}
        for name in ("text", "refusal")
    ]
    rules.append({"required": ["image_url"], "properties": {"type": {"const": image_type}, "image_url": image}})
    return {"anyOf": rules}


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


class ImageUrl(RequestBody):
    """Where an image is; `detail` is ignored, as the size follows from the image and the model."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ChatPart(ContentPart):
    """A text, or an image."""

    model_config = ConfigDict(json_schema_extra=text_or_image_rule(IMAGE, {"not": {"type": "null"}}))

    type: Annotated[TextType | Literal["image_url"], BeforeValidator(_text_or_image)]  # type: ignore[assignment]
    image_url: Annotated[ImageUrl, OrText(lambda url: {"url": url}, dict)] | None = None
    uuid: str | None = None  # vLLM's key of its cache, which has no use here


class NamedPart(ChatPart):
    """A part that was made of another API's request, with the name of its image's field there."""

    field_name: str

    @classmethod
    def of_image(cls, url: str, field_name: str) -> "NamedPart":
        """Return an image; nothing is validated."""
        image = ImageUrl.model_construct(url=url)
        return cls.model_construct(type=IMAGE, image_url=image, field_name=field_name)


class ChatMessage(RequestBody):
    """One message; additional fields are passed to the template unchanged."""

    model_config = ConfigDict(extra="allow")

    role: Role
    content: Annotated[
        list[Annotated[ChatPart, OrText(lambda text: {"type": "text", "text": text}, dict)]],
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

    A content with an image is a list of parts, as templates for images expect it. Raises FieldError for an empty list,
    a part without text, or the result of an unknown call.
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
    has_image = any(part.type == IMAGE for part in message.content)
    content = _parts(message, place) if has_image else _text(message, place)
    shown: dict[str, object] = {**extra, "role": message.role, "content": content}
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


def image_sources(messages: Sequence[ChatMessage | PlainMessage]) -> list[ImageSource]:
    """Return the images of the messages, in order. Raises FieldError for a part of that type without an image."""
    return [
        _source(part, f"messages[{place}].content[{index}]")
        for place, message in enumerate(messages)
        if isinstance(message, ChatMessage)
        for index, part in enumerate(message.content)
        if part.type == IMAGE
    ]


def _source(part: ChatPart, where: str) -> ImageSource:
    if part.image_url is None:
        raise FieldError(where, f"{where} has no image_url")
    name = part.field_name if isinstance(part, NamedPart) else f"{where}.image_url"
    return ImageSource(name, part.image_url.url)


def _parts(message: ChatMessage, place: int) -> list[dict[str, str]]:
    """Return the parts of a content with an image; the template puts the model's placeholder for it."""
    return [
        {"type": "image"} if part.type == IMAGE else {"type": "text", "text": _part_text(part, place, index)}
        for index, part in enumerate(message.content)
    ]


def _text(message: ChatMessage, place: int) -> str:
    return "\n".join(_part_text(part, place, index) for index, part in enumerate(message.content))


def _part_text(part: ChatPart, place: int, index: int) -> str:
    text = part.refusal if part.text is None else part.text
    if text is None:
        where = f"messages[{place}].content[{index}]"
        raise FieldError(where, f"{where} has no text")
    return text
