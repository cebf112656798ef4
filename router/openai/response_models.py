"""Bodies of responses for /openapi.json. Optional keys are present if the request asked for them."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict

FinishReason = Literal["stop", "length"]


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


class UsageBody(TypedDict):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


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


class AssistantMessage(TypedDict):
    """The generated message."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One of `n` completions."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
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


class ChatDelta(TypedDict):
    """New text of a completion; the first delta has the role."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(TypedDict):
    """New output of one of `n` completions."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
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
    """A served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
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
