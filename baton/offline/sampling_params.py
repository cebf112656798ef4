"""Sampling parameters of offline inference, under vLLM's names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton.engine.errors import InvalidRequest
from baton.engine.sampling.params import SamplingParams as EngineParams
from baton.offline.structured_outputs import StructuredOutputsParams
from baton.router.limits import MAX_STOP_CHARS

UNBOUNDED = 1 << 31  # in place of a vocabulary and of an output length that are not known yet
MAX_N = 128  # the default of `max_choices`
# Parameters of vLLM that have no effect, or only this value.
ONLY: Mapping[str, object] = {
    "detokenize": True,
    "spaces_between_special_tokens": True,
    "bad_words": None,
    "allowed_token_ids": None,
    "logits_processors": None,
    "truncate_prompt_tokens": None,
    "extra_args": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the completions of a prompt are sampled."""

    n: int = 1
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: all tokens
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None  # None: derived from that of the LLM
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: as many as the context leaves
    min_tokens: int = 0
    logprobs: int | None = None  # best candidates to report for each token, in addition to the sampled one
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    bad_words: None = None
    allowed_token_ids: None = None
    logits_processors: None = None
    truncate_prompt_tokens: None = None
    extra_args: None = None

    def __post_init__(self) -> None:
        """Raise ValueError naming the first parameter that is not supported or out of range."""
        for name, only in ONLY.items():
            value = getattr(self, name)
            if value != only and (only or value):  # an empty list is the same as None
                raise ValueError(f"{name} is not supported; omit it")
        if not 1 <= self.n <= MAX_N:
            raise ValueError(f"n is {self.n}, but must be from 1 to {MAX_N}")
        if any(not 0 < len(text) <= MAX_STOP_CHARS for text in self.stop_strings):
            raise ValueError(f"each stop string must have 1 to {MAX_STOP_CHARS} characters")
        if self.seed is not None and not -(1 << 63) <= self.seed < 1 << 64:
            raise ValueError(f"seed is {self.seed}, but must be a 64-bit number")
        self.check(UNBOUNDED)

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def check(self, vocab_size: int) -> None:
        """Raise ValueError naming the first parameter that is out of range, token ids included."""
        params = EngineParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0) if self.top_k >= -1 else self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias or {},
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            min_tokens=self.min_tokens,
            max_tokens=UNBOUNDED if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )
        try:
            params.validate(vocab_size)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        except TypeError as error:
            raise ValueError(f"a parameter has the wrong type: {error}") from None

    def body(self) -> dict[str, object]:
        """Return the fields of a completion request, without prompt, seed and the bounds on the output's length."""
        given = self.structured_outputs
        return {
            "n": self.n,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
            "stop": self.stop_strings,
            "stop_token_ids": list(self.stop_token_ids or ()),
            "include_stop_str_in_output": self.include_stop_str_in_output,
            "ignore_eos": self.ignore_eos,
            "logprobs": self.logprobs,
            "prompt_logprobs": self.prompt_logprobs,
            "skip_special_tokens": self.skip_special_tokens,
            "logit_bias": {str(token_id): bias for token_id, bias in (self.logit_bias or {}).items()},
            "structured_outputs": None if given is None else given.body(),
        }
