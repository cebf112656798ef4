"""Body of a request for a pin."""

from typing import Annotated

from pydantic import ConfigDict, Field, WithJsonSchema

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError
from baton.router.generation import ChatPrompt
from baton.router.inline_work import InlineWork
from baton.router.limits import context_error
from baton.router.openai.ignored_fields import Label
from baton.router.openai.messages import Messages, TemplateOptions, image_sources, template_messages
from baton.router.openai.prompts import TEXT_SCHEMA, TOKEN_IDS_SCHEMA, read_token_ids
from baton.router.openai.request_body import RequestBody
from baton.router.openai.tools import Tools, tool_use
from baton.settings.names import MAX_NAME_CHARS

NAME_PATTERN = f"^[!-~]{{1,{MAX_NAME_CHARS}}}$"  # visible ASCII characters
DEFAULT_TTL_S = 3600.0
MAX_TTL_S = 7 * 86400.0
PREFIX_SCHEMA: dict[str, object] = {"anyOf": [TEXT_SCHEMA, {**TOKEN_IDS_SCHEMA, "minItems": 1}]}


class PinRequest(RequestBody):
    """A prefix, as a text, tokens or messages, and how long to hold its KV."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {
                    "required": ["prompt"],
                    "properties": {"prompt": {"type": ["string", "array"]}, "messages": {"type": "null"}},
                },
                {"required": ["messages"], "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}}},
            ]
        }
    )

    model: str | None = None
    prompt: Annotated[object, WithJsonSchema(PREFIX_SCHEMA)] = None
    messages: Messages | None = None
    tools: Tools = Field(default_factory=list)  # in the prompt of messages
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)
    add_special_tokens: bool | None = None  # None: true for a text, false for messages
    ttl_seconds: Annotated[float, Field(ge=1, le=MAX_TTL_S)] = DEFAULT_TTL_S
    id: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None  # an earlier pin with it is replaced
    cache_salt: Label | None = None

    def check(self) -> None:
        """Raise InvalidRequest unless exactly one prefix is given."""
        if self.messages is not None and self.prompt is not None:
            raise FieldError("prompt", "prompt and messages must not both be given")
        if self.messages is None and self.prompt is None:
            raise InvalidRequest("prompt or messages is required")

    @property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer's special tokens are added."""
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens

    async def source(self, inline: InlineWork, context_len: int) -> str | list[int] | ChatPrompt:
        """Return the prefix; messages end without a generation prompt. Raises FieldError."""
        if self.messages is not None:
            return ChatPrompt(
                messages=template_messages(self.messages),
                add_generation_prompt=False,
                template_options=self.chat_template_kwargs,
                tools=tool_use(self.tools, None, is_parallel=True).shown,
                images=image_sources(self.messages),
            )
        if isinstance(self.prompt, str):
            return self.prompt
        if isinstance(self.prompt, list) and len(self.prompt) >= context_len:
            raise context_error("prompt", context_len, len(self.prompt))
        return await inline.run_paced(lambda: read_token_ids(self.prompt, "prompt"))
