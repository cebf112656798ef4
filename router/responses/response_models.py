"""Bodies of responses for /openapi.json."""

from typing import Any, Literal

from typing_extensions import TypedDict

from baton.router.openai.response_models import ChatToken


class OutputText(TypedDict):
    """Text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatToken]


class OutputMessage(TypedDict):
    """A message that the model wrote."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


class ReasoningText(TypedDict):
    """Text of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningOutput(TypedDict):
    """The model's reasoning. There are no summaries of it."""

    id: str
    type: Literal["reasoning"]
    status: Literal["completed", "incomplete"]
    summary: list[Any]
    content: list[ReasoningText]


class FunctionCall(TypedDict):
    """A call of one of the functions."""

    id: str
    type: Literal["function_call"]
    status: Literal["completed", "incomplete"]
    call_id: str
    name: str
    arguments: str


class InputTokensDetails(TypedDict):
    """Number of input tokens that were cached; `cache_write_tokens` is 0, since writing costs nothing."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """Number of output tokens in the model's reasoning."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(TypedDict):
    """Why a response failed."""

    code: Literal["invalid_prompt", "rate_limit_exceeded", "server_error"]
    message: str


class ResponseBody(TypedDict):
    """A response, with the options of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputMessage | ReasoningOutput | FunctionCall]
    usage: ResponseUsage | None
    previous_response_id: str | None
    store: bool
    instructions: str | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[Any]
    temperature: float
    top_p: float
    text: dict[str, Any]
    reasoning: dict[str, Any]
    truncation: Literal["disabled"]


class ResponseEvent(TypedDict):
    """Data of one event of a stream; its other fields depend on the type, as in OpenAI's API."""

    type: str
    sequence_number: int


class DeletedResponse(TypedDict):
    """Response of DELETE."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(TypedDict):
    """A page of input items."""

    object: Literal["list"]
    data: list[Any]
    first_id: str
    last_id: str
    has_more: bool
