"""The messages of a conversation, made of items.

The items of one turn of the model, reasoning, text and calls, become one message, as in a response of the chat API.
Reasoning without a text or a call behind it is left out: a template cannot show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.router.responses.field_names import MessageNames
from baton.router.responses.items import (
    INPUT_IMAGE,
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    Json,
    MessageItem,
    MessagePart,
    ReasoningItem,
    TextPart,
)


@dataclass(slots=True)
class _Turn:
    """A message of the assistant that is not complete."""

    reasoning: str = ""
    content: str | list[Json] | None = None
    content_name: str = ""
    calls: list[Json] = field(default_factory=list)
    call_names: list[str] = field(default_factory=list)


class ChatMessages:
    """Messages for a chat request, and the names of the items that they come from."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.names: list[MessageNames] = []
        self._turn = _Turn()

    def add_text(self, role: str, text: str, name: str) -> None:
        """Add a message; `name`: of the field with its text."""
        self._add({"role": role, "content": text}, MessageNames(name))

    def add(self, item: InputItem, name: str) -> None:
        """Add an item, which is no reference; `name`: its path in the request."""
        turn = self._turn
        match item:
            case ReasoningItem():
                if turn.content is not None or turn.calls:
                    self.finish()
                self._turn.reasoning += _reasoning(item)
            case FunctionCallItem():
                function = {"name": item.name, "arguments": item.arguments}
                turn.calls.append({"id": item.call_id, "type": "function", "function": function})
                turn.call_names.append(name)
            case MessageItem(role="assistant"):
                if turn.content is not None:
                    self.finish()
                self._turn.content, self._turn.content_name = _parts(item.content), name
            case MessageItem():
                self._add({"role": item.role, "content": _parts(item.content)}, MessageNames(name))
            case FunctionOutputItem():
                message: Json = {"role": "tool", "tool_call_id": item.call_id, "content": _parts(item.output)}
                self._add(message, MessageNames(name, content=".output"))

    def finish(self) -> None:
        """Add the message that is not complete, at the end of the items."""
        turn, self._turn = self._turn, _Turn()
        if turn.content is None and not turn.calls:
            return
        message: Json = {"role": "assistant", "content": turn.content or ""}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = turn.calls
        self.messages.append(message)
        self.names.append(MessageNames(turn.content_name or turn.call_names[0], turn.call_names))

    def _add(self, message: Json, names: MessageNames) -> None:
        self.finish()
        self.messages.append(message)
        self.names.append(names)


def _parts(parts: Sequence[TextPart]) -> str | list[Json]:
    if len(parts) == 1 and parts[0].text is not None:
        return parts[0].text
    return list(map(_part, parts))


def _part(part: TextPart) -> Json:
    if isinstance(part, MessagePart) and part.type == INPUT_IMAGE:
        return {"type": "image_url", "image_url": part.image_url}
    return part.model_dump(include={"type", "text", "refusal"}, exclude_none=True)


def _reasoning(item: ReasoningItem) -> str:
    """Return the text of the reasoning; without one, its summary."""
    return "\n".join(part.text for part in item.content or item.summary)
