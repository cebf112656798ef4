"""Bodies of requests to `/v1/messages` and `/v1/messages/count_tokens`."""

from typing import Annotated, Literal

from pydantic import Field

from baton.engine.sampling.params import MAX_TEMPERATURE
from baton.router.anthropic.blocks import Messages, TextBlocks
from baton.router.anthropic.ignored_fields import IgnoredFields, Object
from baton.router.anthropic.tools import ToolChoice, Tools
from baton.router.limits import MAX_ENTRIES
from baton.router.openai.fields import STOP_STRINGS, Count, Penalty, StopString
from baton.router.openai.ignored_fields import Label
from baton.router.openai.messages import TemplateOptions
from baton.router.openai.request_body import WHOLE, AtMost, RequestBody
from baton.router.request_context import INT32_MAX

ThinkingDisplay = Literal["summarized", "omitted", "hidden"]


class Thinking(RequestBody):
    """Whether the model reasons, and how much of it the response shows."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None  # without effect: `max_tokens` limits reasoning and answer together
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(RequestBody):
    """A JSON Schema that the text of the response matches."""

    type: Literal["json_schema"]
    schema_: Object = Field(alias="schema")


class OutputConfig(RequestBody):
    """Format of the response, and the effort that the model makes."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: Object | None = None  # without effect


class Metadata(RequestBody):
    """Information about the request."""

    user_id: Label | None = None


class CountTokensRequest(IgnoredFields):
    """Body of a request for the number of tokens in a prompt."""

    model: str | None = None
    messages: Messages
    system: TextBlocks = Field(default_factory=list)
    tools: Tools = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)

    def display(self) -> ThinkingDisplay:
        """Return how the response shows the model's reasoning."""
        if self.thinking is None:
            return "summarized"
        return "hidden" if self.thinking.type == "disabled" else self.thinking.display or "summarized"


class MessagesRequest(CountTokensRequest):
    """Body of a request for a message."""

    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE]  # 0: only compute and cache the prompt
    stream: bool = False
    stop_sequences: Annotated[list[StopString], Field(fail_fast=True), AtMost(MAX_ENTRIES, STOP_STRINGS)] = Field(
        default_factory=list
    )
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE] | None = None
    metadata: Metadata | None = None
    # The server's own fields, as in chat requests.
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE] = 0
    ignore_eos: bool = False
    cache_salt: Label | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX), WHOLE] = 0
