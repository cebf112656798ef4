"""Messages of requests and the blocks of their contents."""

from collections.abc import Callable, Collection
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from baton.router.limits import MAX_ENTRIES
from baton.router.openai.messages import MAX_PARTS
from baton.router.openai.request_body import AtMost, OrText, RequestBody
from baton.router.openai.tool_messages import CallId

MAX_KIND_CHARS = 64  # of an unsupported type in an error message


class CacheControl(RequestBody):
    """A mark: the prompt up to here will be sent again. All prompts are cached; marked ones are evicted later."""

    model_config = ConfigDict(extra="allow")

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"  # without effect


class TextBlock(RequestBody):
    """Text of a message, of a tool's result or of the system prompt."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: list[object] | None = None  # in an earlier response that the client sends back


def _tag(value: object) -> str | None:
    return f"<{value.get('type')}>" if isinstance(value, dict) else None


def _of_kinds(*known: str) -> Callable[[object], object]:
    """Return a validator that rejects objects of any other type by its name."""

    def check(value: object) -> object:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            raise PydanticCustomError("block", "must be an object with a type: {known}", {"known": ", ".join(known)})
        if kind not in known:
            text = "{kind} blocks are not supported here, only {known}"
            raise PydanticCustomError("block_type", text, {"kind": kind[:MAX_KIND_CHARS], "known": ", ".join(known)})
        return value

    return check


class Base64Source(RequestBody):
    """Bytes of an image."""

    type: Literal["base64"]
    media_type: Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
    data: str


class UrlSource(RequestBody):
    """Where an image is."""

    type: Literal["url"]
    url: str


class ImageBlock(RequestBody):
    """An image, for models that take images."""

    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("<base64>")] | Annotated[UrlSource, Tag("<url>")],
        Discriminator(_tag),
        BeforeValidator(_of_kinds("base64", "url")),
    ]
    cache_control: CacheControl | None = None

    @property
    def url(self) -> str:
        """The image's URL, a data URL if the request has its bytes."""
        if isinstance(self.source, UrlSource):
            return self.source.url
        return f"data:{self.source.media_type};base64,{self.source.data}"


class ThinkingBlock(RequestBody):
    """Reasoning of an earlier response. Any signature is accepted."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(RequestBody):
    """Encrypted reasoning of another server, which is not shown to the model."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(RequestBody):
    """Call of a tool in an earlier response."""

    type: Literal["tool_use"]
    id: CallId
    name: str
    input: dict[str, object]
    cache_control: CacheControl | None = None
    caller: dict[str, object] | None = None
    toolset_name: None = None


def _as_block(text: str) -> list[object]:
    return [{"type": "text", "text": text}]


TextBlocks = Annotated[
    list[Annotated[TextBlock, BeforeValidator(_of_kinds("text"))]],
    Field(fail_fast=True),
    AtMost(MAX_ENTRIES),
    OrText(_as_block),
]


ResultBlocks = Annotated[
    list[
        Annotated[
            Annotated[TextBlock, Tag("<text>")] | Annotated[ImageBlock, Tag("<image>")],
            Discriminator(_tag),
            BeforeValidator(_of_kinds("text", "image")),
        ]
    ],
    Field(fail_fast=True),
    AtMost(MAX_ENTRIES),
    OrText(_as_block),
]


class ToolResultBlock(RequestBody):
    """Result of a call in an earlier message."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: ResultBlocks = Field(default_factory=list)
    is_error: bool = False
    cache_control: CacheControl | None = None
    toolset_name: None = None


Block = TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock


Blocks = Annotated[
    list[
        Annotated[
            Annotated[TextBlock, Tag("<text>")]
            | Annotated[ImageBlock, Tag("<image>")]
            | Annotated[ThinkingBlock, Tag("<thinking>")]
            | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
            | Annotated[ToolUseBlock, Tag("<tool_use>")]
            | Annotated[ToolResultBlock, Tag("<tool_result>")],
            Discriminator(_tag),
            BeforeValidator(_of_kinds("text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result")),
        ]
    ],
    Field(fail_fast=True),
    OrText(_as_block),
]


class Message(RequestBody):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


def _contents(values: Collection[object]) -> list[list[object]]:
    contents = [each.get("content") for each in values if isinstance(each, dict)]
    return [each for each in contents if isinstance(each, list)]


def _bounded(value: object) -> object:
    """Reject conversations with too many blocks before any block is validated."""
    if isinstance(value, list):
        contents = _contents(value)
        results = [inner for content in contents for inner in _contents(content)]
        num_parts = len(value) + sum(map(len, contents)) + sum(map(len, results))
        if num_parts > MAX_PARTS:
            text = "has {num} messages and blocks of messages, but at most {count} are accepted"
            raise PydanticCustomError("too_many", text, {"num": num_parts, "count": MAX_PARTS})
    return value


Messages = Annotated[
    list[Message],
    Field(fail_fast=True, min_length=1, json_schema_extra={"maxItems": MAX_PARTS}),
    BeforeValidator(_bounded),
]
