"""The fields that chat and completions requests share, under OpenAI's and vLLM's names."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from baton.engine.sampling_params import SamplingParams
from baton.router.config import RouterConfig
from baton.router.errors import FieldError
from baton.router.limits import MAX_ENTRIES, check_choices, check_metadata, check_stop, check_text
from baton.router.openai.text_or_list import at_most, text_or_list

INT32_MAX = (1 << 31) - 1

# Fields that would change the output and are not served, with the values under which they change nothing.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "logits_processors": (None, []),
    "suffix": (None, ""),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "use_beam_search": (None, False),
    "length_penalty": (None, 1.0),
    "truncate_prompt_tokens": (None,),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "prompt_embeds": (None,),
    "chat_template": (None,),
    "documents": (None, []),
    "web_search_options": (None,),
    "spaces_between_special_tokens": (None, True),
    "return_tokens_as_token_ids": (None, False),
    "kv_transfer_params": (None,),
}


class StreamOptions(BaseModel):
    """What a stream says of its usage."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationFields(BaseModel):
    """Options of a generation; unknown fields are ignored, unless they are known to change the output."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(1, ge=1)
    best_of: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float] | None, at_most(MAX_ENTRIES)] = None
    seed: int | None = None
    stop: Annotated[list[str], Field(fail_fast=True), at_most(MAX_ENTRIES), text_or_list()] = Field(
        default_factory=list  # a constant would be copied deeply for every request
    )
    stop_token_ids: Annotated[list[StrictInt] | None, at_most(MAX_ENTRIES)] = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None  # taken, and needless: what is cached where is known exactly
    user: str | None = None
    priority: int = Field(0, ge=-INT32_MAX, le=INT32_MAX)

    def check(self, config: RouterConfig, num_prompts: int) -> None:
        """Raises FieldError naming the first field that cannot be served."""
        for name, value in (self.model_extra or {}).items():
            if name in UNSUPPORTED and value not in UNSUPPORTED[name]:
                raise FieldError(name, f"{name} is not supported by this server; leave it out")
            if name == "metadata":
                check_metadata(value)
        if self.best_of is not None and self.best_of > self.num_choices:
            raise FieldError(
                "best_of", f"best_of is {self.best_of}, but more than n ({self.num_choices}) is not served"
            )
        check_choices(config, num_prompts, self.num_choices)
        check_stop(config, self.stop)
        check_text("cache_salt", self.cache_salt)
        check_text("prompt_cache_key", self.prompt_cache_key)
        check_text("user", self.user)
        if self.stream and self.prompt_logprobs is not None:
            raise FieldError("prompt_logprobs", "prompt_logprobs are not available when stream is true")
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options can only be set when stream is true")

    @property
    def num_choices(self) -> int:
        """Choices for each prompt."""
        return self.n or 1

    def sampling(self, defaults: SamplingParams, vocab_size: int, logprobs: int | None) -> SamplingParams:
        """The engine's options; what is not given comes from `defaults`. Seed and max_tokens are not set here."""

        def given(value: float | None, default: float) -> float:
            return default if value is None else value

        top_k = defaults.top_k if self.top_k is None else self.top_k
        return SamplingParams(
            temperature=given(self.temperature, defaults.temperature),
            top_p=given(self.top_p, defaults.top_p),
            top_k=top_k if 0 < top_k < vocab_size else 0,
            min_p=given(self.min_p, defaults.min_p),
            presence_penalty=given(self.presence_penalty, 0.0),
            frequency_penalty=given(self.frequency_penalty, 0.0),
            repetition_penalty=given(self.repetition_penalty, defaults.repetition_penalty),
            logit_bias=self.logit_bias or {},
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )
