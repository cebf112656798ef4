"""Names of a response request's fields in errors about the chat request that was made of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError
from baton.router.openai.errors import describe

PREVIOUS = "previous_response_id"
MESSAGE = re.compile(r"\bmessages\[(\d{1,9})\]((?:\.\w+|\[\d+\])*)")
CALL = re.compile(r"\.tool_calls\[(\d{1,9})\]((?:\.\w+)*)")
RENAMED: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"\bmax_(?:completion_)?tokens\b"), "max_output_tokens"),
    (re.compile(r"\btool_choice\.allowed_tools\.tools\b"), "tool_choice.tools"),
    (re.compile(r"\btools\[(\d+)\]\.function\b"), r"tools[\1]"),
    (re.compile(r"\btool_choice\.function\b"), "tool_choice"),
    (re.compile(r"\bresponse_format\.json_schema\b"), "text.format"),
    (re.compile(r"\bresponse_format\b"), "text.format"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"^messages\b"), "input"),
    (re.compile(r"^logprobs$"), "top_logprobs"),
)
CALL_FIELDS = {".id": ".call_id", ".function.name": ".name", ".function.arguments": ".arguments"}


@dataclass(frozen=True, slots=True)
class MessageNames:
    """Names of the items from which a message was made."""

    item: str  # of its content
    calls: Sequence[str] = ()  # of its tool calls
    content: str = ".content"  # field of the item

    def name(self, rest: str) -> str:
        """Return the name of the field at the path `rest` of the message."""
        if self.item in (PREVIOUS, "instructions"):  # these have no parts that the client knows
            return self.item
        if call := CALL.fullmatch(rest):
            place = int(call[1])
            return self.calls[place] + CALL_FIELDS.get(call[2], "") if place < len(self.calls) else self.item
        if rest == ".tool_call_id":
            return f"{self.item}.call_id"
        return self.item + re.sub(r"^\.content\b", self.content, rest)


class FieldNames:
    """Translation of errors about a chat request to the fields of the client's request."""

    def __init__(self, messages: Sequence[MessageNames]) -> None:
        """`messages`: in the order of the chat request's messages."""
        self._messages = messages

    def translate(self, text: str) -> str:
        """Return a name or message with the client's names."""
        text = MESSAGE.sub(lambda found: self._message_field(int(found[1]), found[2]), text)
        for pattern, name in RENAMED:
            text = pattern.sub(name, text)
        return text

    def renamed(self, error: Exception) -> Exception:
        """Return the error for the client; errors that concern no field are unchanged."""
        if not isinstance(error, InvalidRequest):
            return error
        details = describe(error)[1]["error"]
        assert isinstance(details, dict)
        param, code = details["param"], details["code"]
        message = self.translate(str(error))
        if param is None:
            return InvalidRequest(message)
        field = self.translate(str(param))
        if field == PREVIOUS:
            message = f"{PREVIOUS}: an item of the earlier responses is not accepted: {message.partition(': ')[2]}"
        return FieldError(field, message, code if isinstance(code, str) else None)

    def _message_field(self, place: int, rest: str) -> str:
        return self._messages[place].name(rest) if place < len(self._messages) else "input"
