"""The body of a response request."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from baton.engine.sampling.params import MAX_LOGPROBS, MAX_TEMPERATURE
from baton.router.errors import FieldError
from baton.router.limits import MAX_ENTRIES, MAX_METADATA
from baton.router.openai.chat import ReasoningEffort
from baton.router.openai.fields import BIAS_SCHEMA, Bias, Count, Penalty, StopStrings, TokenId, TokenIdText
from baton.router.openai.ignored_fields import Label, MetadataName, MetadataValue
from baton.router.openai.messages import TemplateOptions
from baton.router.openai.request_body import WHOLE, AtMost, RequestBody, unless
from baton.router.openai.structured_output import JsonObjectFormat, JsonSchema, TextFormat
from baton.router.request_context import INT32_MAX
from baton.router.responses.items import ByType, Input, Json
from baton.router.responses.tools import FlatToolChoice, FlatTools

ID_PATTERN = "^[A-Za-z0-9_-]{1,128}$"  # of a stored response
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
LOGPROBS: Include = "message.output_text.logprobs"
CHAT_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": f'include: ["{LOGPROBS}"]',
    "n": "one request for each response",
}


def _refuse(value: object) -> object:
    raise PydanticCustomError("unsupported", "not supported by this server; omit it")


def _refuse_true(value: object) -> object:
    if value is not False:
        raise PydanticCustomError("unsupported", "not supported by this server; omit it, or set it to false")
    return value


def _refuse_auto(value: object) -> object:
    if value == "auto":
        text = "auto is not supported by this server: it truncates no input; use disabled"
        raise PydanticCustomError("unsupported", text)
    return value


Unsupported = Annotated[None, BeforeValidator(_refuse)]
Never = Annotated[Literal[False], BeforeValidator(_refuse_true), WithJsonSchema({"const": False})]
Disabled = Annotated[Literal["disabled"], BeforeValidator(_refuse_auto)]


class FlatJsonSchemaFormat(JsonSchema):
    """JSON that matches a schema."""

    type: Literal["json_schema"]


FORMATS: dict[str, type[RequestBody]] = {
    "text": TextFormat,
    "json_object": JsonObjectFormat,
    "json_schema": FlatJsonSchemaFormat,
}
Format = Annotated[TextFormat | JsonObjectFormat | FlatJsonSchemaFormat, ByType("formats", FORMATS)]


class TextOptions(RequestBody):
    """Format of the output text. `verbosity` is ignored: a prompt should describe the output."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    def chat_format(self) -> Json | None:
        """Return the `response_format` of a chat request."""
        if self.format is None:
            return None
        if isinstance(self.format, FlatJsonSchemaFormat):
            schema = self.format.model_dump(by_alias=True, exclude_unset=True, exclude={"type"})
            return {"type": self.format.type, "json_schema": schema}
        return {"type": self.format.type}


class ReasoningOptions(RequestBody):
    """How the model reasons. Summaries are ignored: responses have the reasoning itself."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(RequestBody):
    """Options of a stream. `include_obfuscation` is ignored: it hides the lengths of events."""

    include_obfuscation: bool = False


class SharedFields(RequestBody):
    """Fields that have the same name and meaning in a chat request."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[TokenIdText, Bias], AtMost(MAX_ENTRIES), WithJsonSchema(BIAS_SCHEMA)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64), WHOLE] | None = None
    stop: StopStrings = Field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True), AtMost(MAX_ENTRIES)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE] = 0
    skip_special_tokens: bool = True
    cache_salt: Label | None = None
    user: Label | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX), WHOLE] = 0
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    chat_template_kwargs: TemplateOptions | None = None


class ResponseRequest(SharedFields):
    """Body of a request for a response."""

    model_config = ConfigDict(
        json_schema_extra={"allOf": [unless("stream_options", {"type": "null"}, "stream", {"const": True})]}
    )

    input: Input
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(pattern=ID_PATTERN)] | None = None
    store: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None  # of tools that run at the server, of which there are none
    tools: FlatTools = Field(default_factory=list)
    tool_choice: FlatToolChoice = "auto"
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    include: Annotated[list[Include], Field(fail_fast=True), AtMost(MAX_METADATA)] | None = None
    metadata: Annotated[dict[MetadataName, MetadataValue], AtMost(MAX_METADATA)] | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None  # unnecessary: the router knows the workers' caches
    prompt_cache_retention: Label | None = None
    prompt_cache_options: dict[str, object] | None = None
    service_tier: Label | None = None
    truncation: Disabled = "disabled"
    background: Never = False
    background_options: Unsupported = None
    conversation: Unsupported = None
    context_management: Unsupported = None
    moderation: Unsupported = None
    prompt: Unsupported = None

    @model_validator(mode="before")
    @classmethod
    def without_chat_names(cls, body: object) -> object:
        """Raise FieldError for a field of the chat API, and name the one to use."""
        for name in CHAT_NAMES:
            if isinstance(body, dict) and name in body:
                text = f"Unrecognized request argument supplied: {name}. Use {CHAT_NAMES[name]}."
                raise FieldError(name, text, "unknown_parameter")
        return body

    @property
    def num_logprobs(self) -> int | None:
        """Number of best candidates to report for each token; None: no logprobs."""
        wanted = self.include is not None and LOGPROBS in self.include
        return (self.top_logprobs or 0) if wanted or self.top_logprobs else None

    def check(self) -> None:
        """Raise FieldError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options can only be set when stream is true")
