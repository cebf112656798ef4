"""Conversion of Anthropic's messages to those of a chat template.

Results of tools are blocks of the user's messages there, while chat templates have a message for each result. Adjacent
messages with the same role become one. Templates take images in the user's messages alone, so those of results are in
the user's message that follows the results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from baton.router.anthropic.blocks import (
    ImageBlock,
    Message,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from baton.router.errors import FieldError
from baton.router.openai.messages import ChatMessage, ChatPart, NamedPart

BILLING = "x-anthropic-billing-header:"  # differs in each request of Claude Code, so no prompt would be cached
ERROR = "Error: "  # in front of a result that is an error, as chat templates have no field for it
IMAGE_FOLLOWS = "The image is in the next message."  # result without a text


@dataclass(slots=True)
class _Turn:
    """One message for the chat template."""

    role: str
    texts: list[str] = field(default_factory=list)
    parts: list[ChatPart] = field(default_factory=list)  # the texts, and images between them
    thoughts: list[str] = field(default_factory=list)
    calls: list[Mapping[str, object]] = field(default_factory=list)

    def add_text(self, text: str) -> None:
        self.texts.append(text)
        self.parts.append(ChatPart.model_construct(type="text", text=text))

    def shown(self) -> ChatMessage | Mapping[str, object]:
        if len(self.parts) > len(self.texts):  # only users have images
            return ChatMessage.model_construct(role=self.role, content=self.parts)
        message: dict[str, object] = {"role": self.role, "content": "\n".join(self.texts)}
        if self.thoughts:
            message["reasoning"] = message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class Conversation:
    """Messages for the chat template, to which those of a request are added in order."""

    def __init__(self, system: Sequence[TextBlock]) -> None:
        """`system`: the system prompt; empty: there is none."""
        self._messages: list[ChatMessage | Mapping[str, object]] = []  # complete ones
        self._turn: _Turn | None = None  # the last one, if its role may continue
        self._called: dict[str, str] = {}  # names of the called tools by the calls' ids
        self._images: list[ChatPart] = []  # of the last results, shown after them
        self.marked: Sequence[ChatMessage | Mapping[str, object]] = ()  # those up to the last mark so far
        shown = [each for each in system if not each.text.startswith(BILLING)]
        last = max((number for number, each in enumerate(shown) if each.cache_control is not None), default=-1)
        for number, each in enumerate(shown):
            self._begin("system").add_text(each.text)
            if number == last:
                self._mark()

    def _mark(self) -> None:
        """Mark the conversation up to here as one that the client expects to send again."""
        self.marked = (*self._messages, *([self._turn.shown()] if self._turn is not None else []))

    def add(self, message: Message, place: int, takes_mark: bool) -> None:
        """Add the message at `place` of the request.

        takes_mark: whether its last mark is that of the conversation. Each mark costs a copy of what is in front of it.

        Raises FieldError for blocks that its role cannot have, and for results of unknown calls.
        """
        if not message.content:
            self._begin(message.role)
        last = last_mark(message) if takes_mark else -1
        for number, block in enumerate(message.content):
            where = f"messages[{place}].content[{number}]"
            if not isinstance(block, ToolResultBlock):
                self._show_images()
            match block:
                case TextBlock(text=text):
                    self._begin(message.role).add_text(text)
                case ImageBlock() if message.role == "user":
                    self._begin("user").parts.append(NamedPart.of_image(block.url, f"{where}.source"))
                case ToolResultBlock() if message.role == "user":
                    self._add_result(block, where)
                case ToolUseBlock() if message.role == "assistant":
                    self._add_call(block)
                case ThinkingBlock(thinking=text) if message.role == "assistant":
                    self._begin("assistant").thoughts.append(text)
                case RedactedThinkingBlock() if message.role == "assistant":
                    self._begin("assistant")
                case _:
                    raise FieldError(where, f"{where}: {block.type} blocks do not belong in {message.role} messages")
            if number == last:
                self._mark()
        self._show_images()

    def messages(self) -> list[ChatMessage | Mapping[str, object]]:
        """Return the messages; those with images have parts."""
        self._end_turn()
        return self._messages

    def is_to_continue(self) -> bool:
        """Return whether the model continues the last message, which is the assistant's.

        Raises FieldError if that message has no text or calls a tool. Call it before `messages`.
        """
        last = self._turn
        if last is None or last.role != "assistant":
            return False
        if last.calls:
            raise FieldError("messages", "messages: the results of the last message's tool_use blocks are missing")
        if not "".join(last.texts).strip():
            raise FieldError("messages", "messages: the last message is the assistant's, but has no text to continue")
        return True

    def _begin(self, role: str) -> _Turn:
        """Return the current turn of this role; begins one if the last message has another role."""
        if self._turn is None or self._turn.role != role:
            self._end_turn()
            self._turn = _Turn(role)
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.shown())
            self._turn = None

    def _add_call(self, block: ToolUseBlock) -> None:
        self._called[block.id] = block.name
        function = {"name": block.name, "arguments": block.input}
        self._begin("assistant").calls.append({"id": block.id, "type": "function", "function": function})

    def _add_result(self, block: ToolResultBlock, where: str) -> None:
        if block.tool_use_id not in self._called:
            name = f"{where}.tool_use_id"
            text = f"{name}: no earlier message has a tool_use block with the id {block.tool_use_id[:64]!r}"
            raise FieldError(name, text)
        self._end_turn()
        images = [
            NamedPart.of_image(each.url, f"{where}.content[{number}].source")
            for number, each in enumerate(block.content)
            if isinstance(each, ImageBlock)
        ]
        self._images += images
        text = "\n".join(each.text for each in block.content if isinstance(each, TextBlock))
        text = text or (IMAGE_FOLLOWS if images else "")
        self._messages.append(
            {
                "role": "tool",
                "content": ERROR + text if block.is_error and not text.startswith(ERROR) else text,
                "tool_call_id": block.tool_use_id,
                "name": self._called[block.tool_use_id],
            }
        )

    def _show_images(self) -> None:
        """Add the images of the last results to the user's message."""
        if self._images:
            self._begin("user").parts += self._images
            self._images = []


def last_mark(message: Message) -> int:
    """Return the place of a message's last block with a mark; -1 if there is none."""
    marks = (
        number
        for number, block in enumerate(message.content)
        if not isinstance(block, ThinkingBlock | RedactedThinkingBlock) and block.cache_control is not None
    )
    return max(marks, default=-1)
