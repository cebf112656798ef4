"""Chat messages as clients send them, made into what a chat template reads."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidatorFunctionWrapHandler,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_wrap_validator_function

from baton.router.errors import FieldError
from baton.router.openai.text_or_list import text_or_list

MAX_PARTS = 16_384  # messages, and the parts of their contents, of one conversation


class ContentPart(BaseModel):
    """One part of a message's content; only text is served."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None

    @model_validator(mode="before")
    @classmethod
    def of_text(cls, value: object) -> object:
        """A text alone is a part too."""
        return {"type": "text", "text": value} if isinstance(value, str) else value


class ChatMessage(BaseModel):
    """One message; fields beside these go to the template as they are."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Annotated[list[ContentPart], Field(fail_fast=True), text_or_list()] = []


def _bounded(value: object) -> object:
    """Refuses conversations with too many parts before any of them is looked at."""
    if isinstance(value, list):
        contents = (each.get("content") for each in value if isinstance(each, dict))
        num_parts = len(value) + sum(len(content) for content in contents if isinstance(content, list))
        if num_parts > MAX_PARTS:
            raise PydanticCustomError(
                "too_many",
                "has {num} messages and parts of messages, but at most {count} are taken",
                {"num": num_parts, "count": MAX_PARTS},
            )
    return value


PlainMessage = Mapping[str, str]  # a role and a text alone
PLAIN_KEYS = frozenset({"role", "content"})
CheckedMessages = Annotated[list[ChatMessage], Field(fail_fast=True), BeforeValidator(_bounded)]


class PlainOrChecked:
    """Lets plain messages through as they are: most are such, and there may be many; else all become ChatMessages."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """pydantic: how the field is checked."""

        def validate(value: object, check: ValidatorFunctionWrapHandler) -> object:
            if type(value) is list and len(value) <= MAX_PARTS and all(map(_is_plain, value)):
                return value
            return check(value)

        return no_info_wrap_validator_function(validate, handler.generate_schema(CheckedMessages))


def _is_plain(value: object) -> bool:
    return type(value) is dict and value.keys() == PLAIN_KEYS and all(type(each) is str for each in value.values())


Messages = Annotated[Sequence[ChatMessage | PlainMessage], PlainOrChecked()]


def template_messages(messages: Sequence[ChatMessage | PlainMessage]) -> Sequence[Mapping[str, object]]:
    """Messages with their content as one text. Raises FieldError for parts that are no text, and for no messages."""
    if not messages:
        raise FieldError("messages", "messages is empty; at least one message is needed")
    return [
        {**(message.model_extra or {}), "role": message.role, "content": _text(message, place)}
        if isinstance(message, ChatMessage)
        else message
        for place, message in enumerate(messages)
    ]


def _text(message: ChatMessage, place: int) -> str:
    texts: list[str] = []
    for index, part in enumerate(message.content):
        if part.type in ("text", "input_text", "output_text", "refusal") and part.text is not None:
            texts.append(part.text)
        else:
            where = f"messages[{place}].content[{index}]"
            raise FieldError("messages", f"{where} has the type {part.type!r}, but only text is served")
    return "\n".join(texts)
