"""The fields that chat and completions requests share, under OpenAI's and vLLM's names."""

from typing import Annotated

from pydantic import Field, WithJsonSchema
from pydantic.config import JsonDict

from baton.engine.sampling.params import MAX_LOGPROBS, MAX_TEMPERATURE, SamplingParams
from baton.router.config import RouterConfig
from baton.router.errors import FieldError
from baton.router.limits import MAX_ENTRIES, MAX_STOP_CHARS, check_num_completions, check_stop
from baton.router.openai.ignored_fields import Label
from baton.router.openai.prompts import TOKEN_ID
from baton.router.openai.request_body import WHOLE, AtMost, OrText, RequestBody
from baton.router.openai.structured_output import StructuredOutputFields
from baton.router.request_context import INT32_MAX

LEAST_POSITIVE = 1e-6  # workers receive 32-bit floats, in which the smallest 64-bit ones are 0
COMPLETIONS, STOP_STRINGS = "Completions of each prompt", "Stop strings"  # titles of types that the config limits

Count = Annotated[int, Field(ge=1, le=INT32_MAX), WHOLE]
NumCompletions = Annotated[int, Field(ge=1, title=COMPLETIONS), WHOLE]
TokenId = Annotated[int, Field(ge=0, title=TOKEN_ID), WHOLE]
TOKEN_ID_PATTERN = "^(0|[1-9][0-9]{0,9})$"
TokenIdText = Annotated[str, Field(pattern=TOKEN_ID_PATTERN)]  # JSON object keys are strings
Bias = Annotated[float, Field(ge=-100, le=100)]
BIAS_SCHEMA = {
    "type": "object",
    "maxProperties": MAX_ENTRIES,
    "propertyNames": {"pattern": TOKEN_ID_PATTERN},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
Penalty = Annotated[float, Field(ge=-2, le=2)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopStrings = Annotated[
    list[StopString],
    Field(fail_fast=True),
    AtMost(MAX_ENTRIES, STOP_STRINGS),
    OrText(lambda text: [text], text_schema={"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}),
]


TRUE: JsonDict = {"const": True}
STREAM_RULE: JsonDict = {  # same rule as in `GenerationFields.check`
    "anyOf": [
        {"required": ["stream"], "properties": {"stream": TRUE, "prompt_logprobs": {"type": "null"}}},
        {"properties": {"stream": {"enum": [False, None]}, "stream_options": {"type": "null"}}},
    ]
}


class StreamOptions(RequestBody):
    """Additional events and fields of a stream."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # ignored: padding that hides the lengths of events


class GenerationFields(StructuredOutputFields):
    """Options of a generation."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: NumCompletions = 1
    best_of: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT32_MAX), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: Annotated[dict[TokenIdText, Bias], AtMost(MAX_ENTRIES), WithJsonSchema(BIAS_SCHEMA)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64), WHOLE] | None = None
    stop: StopStrings = Field(default_factory=list)  # pydantic would deep-copy a constant default for every request
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True), AtMost(MAX_ENTRIES)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE] = 0
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False  # in logprobs, where two tokens may have the same text
    cache_salt: Label | None = None
    user: Label | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX), WHOLE] = 0

    def check(self, config: RouterConfig, num_prompts: int) -> None:
        """Raise FieldError for the first field that cannot be served."""
        if self.best_of is not None and self.best_of > self.n:
            raise FieldError("best_of", f"best_of is {self.best_of}, but more than n ({self.n}) is not supported")
        check_num_completions(config, num_prompts, self.n)
        check_stop(config, self.stop)
        if self.stream and self.prompt_logprobs is not None:
            raise FieldError("prompt_logprobs", "prompt_logprobs are not available when stream is true")
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options can only be set when stream is true")

    def sampling(self, defaults: SamplingParams, vocab_size: int, logprobs: int | None) -> SamplingParams:
        """Return the engine's options, with `defaults` for missing fields. Does not set seed and max_tokens."""

        def given(value: float | None, default: float) -> float:
            return default if value is None else value

        top_k = defaults.top_k if self.top_k is None else self.top_k
        return SamplingParams(
            temperature=given(self.temperature, defaults.temperature),
            top_p=max(given(self.top_p, defaults.top_p), LEAST_POSITIVE),
            top_k=top_k if 0 < top_k < vocab_size else 0,
            min_p=given(self.min_p, defaults.min_p),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=max(given(self.repetition_penalty, defaults.repetition_penalty), LEAST_POSITIVE),
            logit_bias={int(token_id): bias for token_id, bias in (self.logit_bias or {}).items()},
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
            grammar=self.grammar(),
        )
