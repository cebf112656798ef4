"""Bodies of responses for /openapi.json. Optional keys are present if the request asked for them."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetails(TypedDict):
    """An error in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorBody(TypedDict):
    """Body of every error."""

    error: ErrorDetails


class PromptTokensDetails(TypedDict):
    """Number of prompt tokens that were cached."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """Number of output tokens in the model's reasoning."""

    reasoning_tokens: int


class UsageBody(TypedDict):
    """Tokens of a request; the details of the output are present if the model writes reasoning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class PromptCandidate(TypedDict):
    """One candidate of vLLM's `prompt_logprobs`."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptCandidate] | None]


class Candidate(TypedDict):
    """A token with its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatToken(Candidate):
    """A token of the output with the best candidates at its position."""

    top_logprobs: list[Candidate]


class ChatLogprobs(TypedDict):
    """Log probabilities of a chat completion."""

    content: list[ChatToken]


class CalledFunction(TypedDict):
    """A function that the model calls; the arguments are JSON, which is valid unless the model wrote it otherwise."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of one of the tools."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(TypedDict):
    """The generated message. Both fields of reasoning have the same text; null: there is none."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One of `n` completions."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """Response of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class FunctionDelta(TypedDict):
    """The name of a called function, or further text of its arguments."""

    name: NotRequired[str]
    arguments: str


class ToolCallDelta(TypedDict):
    """The beginning of a call, with its id and name, or further text of its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    """New text of a completion, or a part of a call; the first delta has the role."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChunkChoice(TypedDict):
    """New output of one of `n` completions."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(TypedDict):
    """Data of one event of a stream of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageBody]
    prompt_token_ids: NotRequired[list[int]]


class CompletionLogprobs(TypedDict):
    """Log probabilities of a completion; null for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One of `n` completions of a prompt, or new output of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Completion(TypedDict):
    """Response of `/v1/completions`, and data of one event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageBody]


class Tokenized(TypedDict):
    """Response of `/tokenize`."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    """Response of `/detokenize`."""

    prompt: str


class Model(TypedDict):
    """A served model, or an adapter of one."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str  # of an adapter its path
    parent: str | None  # of an adapter the model
    max_model_len: int | None


class Models(TypedDict):
    """Response of `/v1/models`."""

    object: Literal["list"]
    data: list[Model]


class Readiness(TypedDict):
    """Response of `/ready`; 503 without a worker."""

    status: Literal["ready", "degraded"]
    registry: Literal["lost", "connected"]


class Workers(TypedDict):
    """Response of `/workers`."""

    router: dict[str, object]
    workers: list[dict[str, object]]
    processes: list[dict[str, object]]  # of the router's supervisors
