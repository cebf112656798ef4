"""Chat messages as clients send them, made into what a chat template reads."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from router.openai.errors import FieldError


class ContentPart(BaseModel):
    """One part of a message's content; only text is served."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """One message; fields beside these go to the template as they are."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[ContentPart | str] | None = None


def template_messages(messages: Sequence[ChatMessage]) -> list[Mapping[str, object]]:
    """Messages with their content as one text. Raises FieldError for parts that are no text, and for no messages."""
    if not messages:
        raise FieldError("messages", "messages is empty; at least one message is needed")
    return [
        {**(message.model_extra or {}), "role": message.role, "content": _text(message, place)}
        for place, message in enumerate(messages)
    ]


def _text(message: ChatMessage, place: int) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    texts: list[str] = []
    for index, part in enumerate(message.content):
        if isinstance(part, str):
            texts.append(part)
        elif part.type in ("text", "input_text", "output_text", "refusal") and part.text is not None:
            texts.append(part.text)
        else:
            where = f"messages[{place}].content[{index}]"
            raise FieldError("messages", f"{where} has the type {part.type!r}, but only text is served")
    return "\n".join(texts)
