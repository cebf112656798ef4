"""Bodies of responses in Anthropic's API for /openapi.json."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageErrorDetails(TypedDict):
    """An error in Anthropic's shape."""

    type: str
    message: str


class MessageError(TypedDict):
    """Body of every error of these paths, and data of the event `error`."""

    type: Literal["error"]
    error: MessageErrorDetails
    request_id: str


class OutputTokensDetails(TypedDict):
    """Number of output tokens in the model's reasoning."""

    thinking_tokens: int


class MessageUsage(TypedDict):
    """Tokens of a message; the details are present if the model writes reasoning, except in `message_start`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: NotRequired[OutputTokensDetails]


class OutputText(TypedDict):
    """Text of the answer."""

    type: Literal["text"]
    text: str


class OutputThinking(TypedDict):
    """The model's reasoning; without its text if `thinking.display` is `omitted`."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class OutputToolUse(TypedDict):
    """Call of a tool. An input that is no JSON object is a text under the key `INVALID_JSON`."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


OutputBlock = OutputText | OutputThinking | OutputToolUse


class OutputMessage(TypedDict):
    """Response of `/v1/messages`. In `message_start`, the content is empty and both reasons are null."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[OutputBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(TypedDict):
    """The first event."""

    type: Literal["message_start"]
    message: OutputMessage


class BlockStart(TypedDict):
    """Beginning of a block, which is empty."""

    type: Literal["content_block_start"]
    index: int
    content_block: OutputBlock


class TextDelta(TypedDict):
    """Further text of the answer."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    """Further reasoning."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    """Signature of a block of reasoning."""

    type: Literal["signature_delta"]
    signature: str


class InputJsonDelta(TypedDict):
    """Further JSON of a call's input, as the model writes it."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    """Further output of the open block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(TypedDict):
    """End of a block."""

    type: Literal["content_block_stop"]
    index: int


class StopFields(TypedDict):
    """Why the message ends."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(TypedDict):
    """End of the output, with the usage of the whole message."""

    type: Literal["message_delta"]
    delta: StopFields
    usage: MessageUsage


class BareEvent(TypedDict):
    """Event without other fields."""

    type: Literal["ping", "message_stop"]


MessageEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | BareEvent


class TokenCount(TypedDict):
    """Response of `/v1/messages/count_tokens`."""

    input_tokens: int
